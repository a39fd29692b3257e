"""Backbone weights on disk.

A run stores them as safetensors under torchvision's names. Files of other projects can be loaded to
start from.
"""

import copy
import json
import pickle
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from antipode.files import atomic_write
from antipode.nets.backbone import RESNETS, Stem, Wrapped
from antipode.nets.backbone import backbone as make_backbone

# modules of classifiers, and of MoCo's and SimSiam's projection heads, which are called `fc` too
CLASSIFIERS = ("fc", "classifier", "head", "heads", "last_linear")
# words in the prefixes of networks that follow another network
TWINS = {"k", "key", "momentum", "target", "teacher", "ema", "twin"}
# it has no effect if the momentum is fixed, and files from before 2019 do not have it
COUNTER = "num_batches_tracked"


def bare(backbone: nn.Module) -> nn.Module:
    """Return the network inside a wrapper, or the backbone itself if it is not wrapped."""
    return backbone.net if isinstance(backbone, Wrapped) else backbone


def reopened(
    weights: Mapping[str, Tensor],
    name: str,
    stem: Stem | None,
    module: nn.Module | None = None,
    size: int | None = None,
) -> tuple[nn.Module, int]:
    """Build the backbone that these weights belong to, and return it with its number of channels.

    The weights are not loaded. `module` is your own backbone, of which a copy is returned. `size`
    is the side of the images that it was trained on.
    """
    if module is not None:
        return _copied(module, size)
    if name in RESNETS and "conv1.weight" in weights:
        channels = int(weights["conv1.weight"].shape[1])
        return make_backbone(name, stem=stem, channels=channels, size=size), channels
    # A file lists its weights in alphabetical order: only the network shows which layer is first.
    net = make_backbone(name, stem=stem, size=size)
    for key, value in (bare(net).state_dict() | net.state_dict()).items():
        stored = weights.get(key)
        if stored is None or not value.ndim == stored.ndim == 4:
            continue
        channels = int(stored.shape[1])
        if channels != value.shape[1]:
            return make_backbone(name, stem=stem, channels=channels, size=size), channels
    return net, 3


def _copied(module: nn.Module, size: int | None) -> tuple[nn.Module, int]:
    """Return a copy of your own module as a backbone, and its number of channels.

    The layer that sees the images need not be the first one that is defined. So the input channels
    of all convolutions are tried, with 3 and 1 after those of the first.
    """
    candidates = [layer.in_channels for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    first_error: ValueError | None = None
    for channels in dict.fromkeys([*candidates[:1], 3, 1, *candidates]):
        copied = copy.deepcopy(module).cpu().float()
        try:
            return make_backbone(copied, channels=channels, size=size), channels
        except ValueError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def tensors(backbone: nn.Module) -> dict[str, Tensor]:
    """Return a contiguous copy of the backbone's state on the CPU.

    The names of a wrapped network are its own, without the prefix of the wrapper.
    """
    return {
        name: value.detach().cpu().contiguous().clone()
        for name, value in bare(backbone).state_dict().items()
    }


class Normal(NamedTuple):
    """Mean and standard deviation per channel that normalise the pixels for a network."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def write(backbone: nn.Module, path: Path, normal: Normal | None = None) -> None:
    """Write the weights of a backbone to a safetensors file, with the normalisation of its pixels.

    The file is written under another name first and then renamed. float64 becomes float32, which
    every reader's network has.
    """
    state = {
        name: value.float() if value.dtype == torch.float64 else value
        for name, value in tensors(backbone).items()
    }
    # The header has one key only: the library writes several keys in random order, and the same
    # weights must give the same file.
    with atomic_write(path) as file:
        file.write(save(state, metadata=None if normal is None else header(normal)))


def header(normal: Normal) -> dict[str, str]:
    """Return the entry of a safetensors header that describes the normalisation of the pixels."""
    return {"pixels": json.dumps(normal._asdict())}


def normal(path: Path) -> Normal | None:
    """Return the normalisation of the pixels that a safetensors file or a run folder states.

    Returns None if there is none, or if the entry was written by other software.
    """
    path = path / "backbone.safetensors" if path.is_dir() else path
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    with safe_open(path, "pt") as file:
        about = (file.metadata() or {}).get("pixels", "")
    try:
        content = json.loads(about)
        return Normal(*(tuple(float(value) for value in content[name]) for name in Normal._fields))
    except (ValueError, TypeError, KeyError):
        return None


def read(path: Path) -> dict[str, Any]:
    """Return the content of a safetensors file, or of a torch file of tensors and plain values."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} is not a torch file of tensors and plain values, and other content is not "
            "trusted: save its state_dict alone"
        ) from None
    except (SafetensorError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"the weights in {path} cannot be read ({_line(error)})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a state dict")
    return content


def start(backbone: nn.Module, name: str, weights: str) -> None:
    """Load weights into a backbone, in place.

    A file may hold more than the network. The names of the network are found under any prefix, and
    a classifier is left out.

    Args:
        backbone: the backbone.
        name: its name, such as "resnet50".
        weights: a file, a run folder, or "torchvision" for its ImageNet weights V1.
    """
    net = bare(backbone)
    if weights == "torchvision":
        fit(net, _torchvision(name), f"torchvision's {name}")
        return
    path = Path(weights).expanduser()
    path = path / "backbone.safetensors" if path.is_dir() else path
    fit(net, network(_flat(read(path)), net, path), str(path))


def fit(net: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Load weights into a network, in place.

    There must be a tensor for every one of the network, with its shape. The tensors of a classifier
    are left out. A network for grey images also accepts a first layer for colour images. Its
    weights are summed over the colours, so that a grey image gives the same output as before.

    Args:
        net: the network.
        weights: the tensors by name.
        origin: what error messages call the weights.
    """
    state = net.state_dict()
    given = {
        name: value
        for name, value in weights.items()
        if name in state or name.split(".")[0] not in CLASSIFIERS
    }
    absent = [name for name in state if name not in given and not name.endswith(COUNTER)]
    extra = [name for name in given if name not in state]
    if absent:
        raise ValueError(
            f"{origin} lacks {len(absent)} of the backbone's tensors, the first: {absent[0]}"
        )
    if extra:
        raise ValueError(
            f"{origin} holds {len(extra)} tensors that the backbone does not have, the first: "
            f"{extra[0]}"
        )
    given = {name: _summed(value, state[name]) for name, value in given.items()}
    different = [name for name, value in given.items() if value.shape != state[name].shape]
    if different:
        raise ValueError(_misfit(origin, different, given, state))
    if not all(bool(value.isfinite().all()) for value in given.values()):
        raise ValueError(f"{origin} holds weights that are NaN or infinite")
    net.load_state_dict(state | given)


def _summed(value: Tensor, like: Tensor) -> Tensor:
    """Return the weights of a convolution for grey images if `like` (O,1,H,W) is one.

    Weights (O,3,H,W) are summed over the colours. All other tensors are returned as they are.
    """
    colours = (*like.shape[:1], 3, *like.shape[2:])
    grey = like.ndim == 4 and like.shape[1] == 1 and tuple(value.shape) == colours
    return value.sum(1, keepdim=True) if grey else value


def _misfit(
    origin: str, names: list[str], given: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> str:
    """Return the error message for tensors whose shapes differ.

    The stem differs most often, so its message says what to change.
    """
    first = names[0]
    theirs, ours = (f"({', '.join(map(str, part[first].shape))})" for part in (given, state))
    if names == ["conv1.weight"]:
        return (
            f"the stem differs: conv1.weight of {origin} is {theirs} and the backbone's is {ours}, "
            "so weights and data need the same number of channels and the same backbone.stem"
        )
    return (
        f"{len(names)} tensors of {origin} have other shapes, the first: {first} {theirs}, the "
        f"backbone's is {ours}"
    )


def network(flat: Mapping[str, Tensor], net: nn.Module, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file that belong to a network, by the names in the network.

    They are those under the prefix that has the most names of the network, so that no list of
    prefixes such as MoCo's `module.encoder_q.` or Lightning's `backbone.` is needed. A key encoder,
    teacher or moving average is used only if the file holds nothing else.
    """
    names = list(net.state_dict())
    first = names[0]
    prefixes = {key[: -len(first)] for key in flat if key == first or key.endswith(f".{first}")}
    if not prefixes:
        raise ValueError(f"{path} holds no such backbone: nothing in it is called {first}")
    online = {prefix for prefix in prefixes if TWINS.isdisjoint(re.split("[._]", prefix))}
    counts = {
        prefix: sum(prefix + name in flat for name in names)
        for prefix in sorted(online or prefixes)
    }
    best = [prefix for prefix, count in counts.items() if count == max(counts.values())]
    if len(best) > 1:
        raise ValueError(
            f"{path} holds {len(best)} such backbones, under {' and '.join(best)}: save only the "
            "one you want"
        )
    return {
        key.removeprefix(best[0]): value for key, value in flat.items() if key.startswith(best[0])
    }


def _flat(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Tensor]:
    """Return all tensors of nested dictionaries by dotted name.

    Keys of outer dictionaries, such as `state_dict`, become part of the prefix.
    """
    flat: dict[str, Tensor] = {}
    for key, value in content.items():
        if isinstance(value, Tensor):
            flat[f"{prefix}{key}"] = value
        elif isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
    return flat


def _torchvision(name: str) -> Mapping[str, Tensor]:
    """Return the weights that the papers call supervised: V1, of torchvision's first recipe."""
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
            f"torchvision's weights for {name} could not be downloaded ({_line(error)}): "
            f"without a network connection, put {entry.url} at {place}"
        ) from error
    return state


def _line(error: Exception) -> str:
    """Return the first line of an error message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
