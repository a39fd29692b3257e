"""Backbone weights on the disk: as safetensors under torchvision's names and back, and other people's to start from."""

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
from torchvision import models

from antipode.files import atomic_write
from antipode.nets.backbone import Stem, Wrapped
from antipode.nets.backbone import backbone as make_backbone

CLASSIFIERS = (
    "fc",
    "classifier",
    "head",
    "heads",
    "last_linear",
)  # MoCo's and SimSiam's projections are an `fc` too
TWINS = {
    "k",
    "key",
    "momentum",
    "target",
    "teacher",
    "ema",
    "twin",
}  # words of prefixes: what follows a network
COUNTER = "num_batches_tracked"  # decides nothing with a fixed momentum, and files of before 2019 have none


def bare(backbone: nn.Module) -> nn.Module:
    """The network itself where it was wrapped to be a backbone."""
    return backbone.net if isinstance(backbone, Wrapped) else backbone


def reopened(
    weights: Mapping[str, Tensor],
    name: str,
    stem: Stem | None,
    module: nn.Module | None = None,
    size: int | None = None,
) -> tuple[nn.Module, int]:
    """The backbone that these weights are of, not yet with them, and its channels; of a module of one's own a copy.

    `size` is that of the images that it was trained on.
    Weights lie in a file by the alphabet, so that which layer sees the images is asked of the network.
    """
    if module is not None:
        return _copied(module, size)
    net = make_backbone(name, stem=stem, size=size)
    own = bare(net).state_dict() | net.state_dict()
    channels = 3
    for key, value in own.items():
        there = weights.get(key)
        if there is not None and value.ndim == there.ndim == 4 and there.shape[1] != value.shape[1]:
            channels = there.shape[1]
            break
    return (
        net if channels == 3 else make_backbone(name, stem=stem, channels=channels, size=size)
    ), channels


def _copied(module: nn.Module, size: int | None) -> tuple[nn.Module, int]:
    """A module of one's own may name its first layer last: what takes images tells."""
    taken = [layer.in_channels for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    refused: ValueError | None = None
    for channels in dict.fromkeys([*taken[:1], 3, 1, *taken]):
        try:
            return make_backbone(
                copy.deepcopy(module).cpu().float(), channels=channels, size=size
            ), channels
        except ValueError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def tensors(backbone: nn.Module) -> dict[str, Tensor]:
    """The backbone's state on the CPU, contiguous; a wrapped network's own names."""
    return {
        name: value.detach().cpu().contiguous().clone()
        for name, value in bare(backbone).state_dict().items()
    }


class Normal(NamedTuple):
    """How pixels were normalised for a network: they are part of what it has learned."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def write(backbone: nn.Module, path: Path, normal: Normal | None = None) -> None:
    """Write the weights aside and rename; float64 as float32, which is what every reader's network has."""
    state = {
        name: value.float() if value.dtype == torch.float64 else value
        for name, value in tensors(backbone).items()
    }
    # one key: the library writes several in any order, and the same weights are to be the same file
    with atomic_write(path) as file:
        file.write(save(state, metadata=None if normal is None else header(normal)))


def header(normal: Normal) -> dict[str, str]:
    """What the header of a safetensors file says of the pixels."""
    return {"pixels": json.dumps(normal._asdict())}


def normal(path: Path) -> Normal | None:
    """How pixels were normalised for the network in a safetensors file or run folder, where that says it."""
    path = path / "backbone.safetensors" if path.is_dir() else path
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    with safe_open(path, "pt") as file:
        about = (file.metadata() or {}).get("pixels", "")
    try:
        with_source = json.loads(about)
        return Normal(
            *(tuple(float(value) for value in with_source[name]) for name in Normal._fields)
        )
    except (ValueError, TypeError, KeyError):  # nothing, or somebody else's word
        return None


def read(path: Path) -> dict[str, Any]:
    """The content of a safetensors file, or of a torch file of tensors and plain values."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} is no torch file of tensors and plain values, and what else may be in it is not trusted: "
            "save its state_dict alone"
        ) from None
    except (SafetensorError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path} holds no weights that can be read ({_line(error)})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a state dict")
    return content


def start(backbone: nn.Module, name: str, weights: str) -> None:
    """Give a backbone the weights of torchvision ("torchvision", ImageNet's V1) or of a file or run folder, in place.

    A file may hold more than the network: its own names are found under any prefix, the classifier is left out.
    """
    net, path = bare(backbone), Path(weights).expanduser()
    if weights == "torchvision":
        fit(net, _torchvision(name), f"torchvision's {name}")
        return
    path = path / "backbone.safetensors" if path.is_dir() else path
    fit(net, network(_flat(read(path)), net, path), str(path))


def fit(net: nn.Module, found: Mapping[str, Tensor], origin: str) -> None:
    """Load tensors that must be all of the net's, of its shapes; the classifier's are left out.

    A net for grey images takes a first layer that saw colours, too: summed over them it sees grey as it saw it before.
    """
    wanted = net.state_dict()
    given = {
        name: value
        for name, value in found.items()
        if name in wanted or name.split(".")[0] not in CLASSIFIERS
    }
    absent = [name for name in wanted if name not in given and not name.endswith(COUNTER)]
    extra = [name for name in given if name not in wanted]
    if absent:
        raise ValueError(
            f"{origin} lacks {len(absent)} of the backbone's tensors, the first: {absent[0]}"
        )
    if extra:
        raise ValueError(
            f"{origin} holds {len(extra)} tensors that the backbone has not, the first: {extra[0]}"
        )
    given = {name: _summed(value, wanted[name]) for name, value in given.items()}
    other = [name for name, value in given.items() if value.shape != wanted[name].shape]
    if other:
        raise ValueError(_misfit(origin, other, given, wanted))
    if not all(bool(value.isfinite().all()) for value in given.values()):
        raise ValueError(f"{origin} holds weights that are not numbers")
    net.load_state_dict(wanted | given)


def _summed(value: Tensor, wanted: Tensor) -> Tensor:
    """A convolution's weights (O,3,H,W), summed over the colours where (O,1,H,W) is wanted; all else as it is."""
    colours = (*wanted.shape[:1], 3, *wanted.shape[2:])
    grey = wanted.ndim == 4 and wanted.shape[1] == 1 and tuple(value.shape) == colours
    return value.sum(1, keepdim=True) if grey else value


def _misfit(
    origin: str, other: list[str], given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> str:
    """The sentence for shapes that differ; the stem is the usual one, and has its remedy."""
    first = other[0]
    theirs, ours = (f"({', '.join(map(str, state[first].shape))})" for state in (given, wanted))
    if other == ["conv1.weight"]:
        return (
            f"the stem differs: conv1.weight of {origin} is {theirs} and the backbone's is {ours}, so weights and "
            "data need the same number of channels and the same backbone.stem"
        )
    return f"{len(other)} tensors of {origin} have other shapes, the first: {first} {theirs}, the backbone's is {ours}"


def network(flat: Mapping[str, Tensor], net: nn.Module, path: Path) -> dict[str, Tensor]:
    """The tensors of a file under the prefix where most of the net's names are, with the prefix taken off.

    `module.encoder_q.` of MoCo, `backbone.` of Lightning and the like need no list that way. A key encoder, teacher
    or moving average is taken only where the file has nothing else.
    """
    names = list(net.state_dict())
    ends = {
        key[: -len(names[0])] for key in flat if key == names[0] or key.endswith(f".{names[0]}")
    }
    if not ends:
        raise ValueError(f"{path} holds no such backbone: nothing in it is called {names[0]}")
    online = {prefix for prefix in ends if TWINS.isdisjoint(re.split("[._]", prefix))}
    counts = {
        prefix: sum(prefix + name in flat for name in names) for prefix in sorted(online or ends)
    }
    best = [prefix for prefix, count in counts.items() if count == max(counts.values())]
    if len(best) > 1:
        raise ValueError(
            f"{path} holds {len(best)} such backbones, under {' and '.join(best)}: save the one you want"
        )
    return {
        key.removeprefix(best[0]): value for key, value in flat.items() if key.startswith(best[0])
    }


def _flat(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Tensor]:
    """All tensors of nested dicts under dotted names: wrappers such as `state_dict` become part of the prefix."""
    found: dict[str, Tensor] = {}
    for key, value in content.items():
        if isinstance(value, Tensor):
            found[f"{prefix}{key}"] = value
        elif isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
    return found


def _torchvision(name: str) -> Mapping[str, Tensor]:
    """The weights that the papers call supervised: V1, of torchvision's first recipe."""
    try:
        entry = models.get_model_weights(name)["IMAGENET1K_V1"]
    except (ValueError, KeyError):
        raise ValueError(
            f"torchvision has no ImageNet weights for {name}: give a path, or another backbone"
        ) from None
    try:
        with redirect_stdout(
            sys.stderr
        ):  # torch.hub says there what it fetches; a command's own is the result alone
            state: Mapping[str, Tensor] = entry.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        place = Path(torch.hub.get_dir()) / "checkpoints" / Path(entry.url).name
        raise ValueError(
            f"torchvision's weights for {name} could not be fetched ({_line(error)}): "
            f"where there is no network, put {entry.url} at {place}"
        ) from error
    return state


def _line(error: Exception) -> str:
    """The first line of what went wrong."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
