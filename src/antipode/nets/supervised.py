"""The weights that papers call supervised: torchvision's, trained on ImageNet with labels."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path

import torch
from torch import Tensor

from antipode.nets.torch_file import line


def imagenet_weights(name: str) -> Mapping[str, Tensor]:
    """Return torchvision's weights V1 for a network, of its first recipe.

    They are downloaded once.
    """
    from torchvision import models  # noqa: PLC0415  (slow to import: it loads torch's compiler)

    try:
        entry = models.get_model_weights(name)["IMAGENET1K_V1"]
    except (ValueError, KeyError):
        raise ValueError(
            f"torchvision has no ImageNet weights for {name}: give a path, or another backbone"
        ) from None
    try:
        # torch.hub prints what it downloads, but the standard output of a command is its result
        # alone
        with redirect_stdout(sys.stderr):
            state: Mapping[str, Tensor] = entry.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        place = Path(torch.hub.get_dir()) / "checkpoints" / Path(entry.url).name
        raise ValueError(
            f"torchvision's weights for {name} could not be downloaded ({line(error)}): "
            f"without a network connection, put {entry.url} at {place}"
        ) from error
    return state


def weights_at_hand(name: str) -> Path | None:
    """Return the file of torchvision's weights V1 for a network, None if it is not in the cache."""
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    if not any(folder.glob(f"{name}-*.pth")):  # saves the import, which is slow
        return None
    from torchvision import models  # noqa: PLC0415

    try:
        entry = models.get_model_weights(name)["IMAGENET1K_V1"]
    except (ValueError, KeyError):
        return None
    file = folder / Path(entry.url).name
    return file if file.is_file() else None
