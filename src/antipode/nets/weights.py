"""The weights of backbones: write them, and load them into a network.

A run stores them as safetensors under torchvision's names. Files of other projects can be loaded to
start from.
"""

import copy
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from antipode.files import atomic_write
from antipode.nets.backbone import RESNETS, STEMS, ResNet, Stem, Wrapped
from antipode.nets.backbone import backbone as make_backbone
from antipode.nets.layouts import COUNTER, LeftOut, find, fits, flat, is_coloured
from antipode.nets.supervised import imagenet_weights
from antipode.nets.weight_file import (
    About,
    check_finite,
    file_of,
    packed,
    read,
    stated_stem,
)
from antipode.nets.weight_file import about as about_file
from antipode.paths import expanded

# modules of classifiers, and of MoCo's and SimSiam's projection heads, which are called `fc` too
CLASSIFIERS = ("fc", "classifier", "head", "heads", "last_linear")


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
    if name in RESNETS:
        channels = channels_of(weights, 3)
        return make_backbone(name, stem=stem, channels=channels, size=size), channels
    # A file lists its weights in alphabetical order: only the network shows which layer is first.
    net = make_backbone(name, stem=stem, size=size)
    for key, value in (bare(net).state_dict() | net.state_dict()).items():
        stored = weights.get(key)
        if stored is None or not value.ndim == stored.ndim == 4:
            continue
        channels = int(stored.shape[1])
        if channels != value.shape[1] and 1 <= channels <= 1024:
            return make_backbone(name, stem=stem, channels=channels, size=size), channels
    return net, 3


def channels_of(weights: Mapping[str, Tensor], default: int) -> int:
    """Return the channels of a ResNet's first convolution, or `default` if that has another form.

    More than 1,024 channels are not believed: a damaged file must not ask for much memory.
    """
    first = weights.get("conv1.weight")
    stated = first.shape[1] if first is not None and first.ndim == 4 else 0
    return stated if 1 <= stated <= 1024 else default


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


def write(backbone: nn.Module, path: Path, about: About | None = None) -> None:
    """Write the weights of a backbone to a safetensors file, with a description of the network.

    The file is written under another name first and then renamed. float64 becomes float32, which
    every reader's network has. Raises ValueError, and leaves a file of that name as it is, if a
    tensor holds NaN or infinite values.
    """
    state = {
        name: value.float() if value.dtype == torch.float64 else value
        for name, value in tensors(backbone).items()
    }
    check_finite(state, path)
    with atomic_write(path) as file:
        file.write(packed(state, about or About()))


def start(backbone: nn.Module, name: str, weights: str, stem: Stem | None = None) -> None:
    """Load weights into a backbone, in place.

    A file may hold more than the network. The names of the network are found under any prefix, and
    a warning says what is left out.

    Args:
        backbone: the backbone.
        name: its name, such as "resnet50".
        weights: a file, a run folder, or "torchvision" for its ImageNet weights V1.
        stem: the stem of the weights, if the user has named it.
    """
    net = bare(backbone)
    if weights == "torchvision":
        fit(net, imagenet_weights(name), f"torchvision's {name}")
        return
    path = file_of(expanded(weights))
    state = matched(net, network(path, name, net), str(path))
    if isinstance(net, ResNet):
        theirs = settled_stem(path, state, stem, "set backbone.stem={stem}")
        if theirs != net.stem:
            raise ValueError(
                f"the stem differs: {path} has the stem {theirs!r} and the backbone has "
                f"{net.stem!r}, so set backbone.stem={theirs}"
            )
    net.load_state_dict(net.state_dict() | state)


def network(path: Path, name: str, net: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a file that belong to a network, by the names in the network.

    Warns of what is left out. Raises ValueError if the file says that it holds another network.
    """
    stated = about_file(path).backbone
    if stated != name and stated in RESNETS and name in RESNETS:
        raise ValueError(f"{path} holds a {stated}, not a {name}")
    found = find(flat(read(path), path), net, path)
    if found.remark:
        warnings.warn(found.remark, LeftOut, stacklevel=4)
    return found.state


def settled_stem(
    path: Path, state: Mapping[str, Tensor], named: Stem | None, ask: str
) -> Stem | None:
    """Return the stem of a ResNet's weights, None if no stem has such a first convolution.

    Two stems have tensors of equal shapes, so the file, its run or the user has to name one.

    Args:
        path: the file.
        state: the tensors of the network.
        named: the stem that the user has named.
        ask: what the error message tells the user to write, with {stem} for the name of a stem.
    """
    stored = stated_stem(path)
    if stored and named and stored != named:
        raise ValueError(f"the stem differs: {path} has the stem {stored!r}, not {named!r}")
    first = state.get("conv1.weight")
    kernel = first.shape[-1] if first is not None and first.ndim == 4 else 0
    fitting = [stem for stem, (side, *_) in STEMS.items() if side == kernel]
    stem = named or stored
    if stem is not None and stem not in fitting:
        sides = STEMS[stem][0]
        raise ValueError(
            f"the stem differs: the first convolution in {path} is {kernel}x{kernel}, and that of "
            f"the stem {stem!r} is {sides}x{sides}"
        )
    if stem is None and len(fitting) > 1:
        kinds = " or ".join(f"{one!r} (stride {STEMS[one][1]})" for one in fitting)
        texts = " or ".join(ask.replace("{stem}", one) for one in fitting)
        raise ValueError(
            f"{path} does not say which stem it has: its {kernel}x{kernel} convolution fits "
            f"{kinds}; {texts}"
        )
    return stem or next(iter(fitting), None)


def fit(net: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Load weights that fit into a network, in place. The arguments are those of `matched`."""
    net.load_state_dict(net.state_dict() | matched(net, weights, origin))


def matched(net: nn.Module, weights: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
    """Return weights with the names, shapes and types that a network has.

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
    different = [name for name, value in given.items() if not fits(value, state[name])]
    if different:
        raise ValueError(_misfit(origin, different, given, state))
    return {name: _converted(name, value, state[name], origin) for name, value in given.items()}


def _converted(name: str, value: Tensor, like: Tensor, origin: str) -> Tensor:
    """Return a tensor with the type and shape of the network's, summed over colours if need be.

    Raises ValueError if it holds another kind of numbers, or numbers that are not finite.
    """
    real = value.is_floating_point() and value.dtype.itemsize > 1  # float8 needs a scale
    usable = real == like.is_floating_point() or (real and name.endswith(COUNTER))
    if value.is_complex() or not usable:
        kind = str(value.dtype).removeprefix("torch.")
        raise ValueError(f"{origin} holds {kind} values in {name}, which the backbone cannot use")
    if not bool(value.isfinite().all()):
        raise ValueError(f"{origin} holds weights that are NaN or infinite, in {name}")
    value = value.detach().to(like.dtype)
    value = value.sum(1, keepdim=True) if is_coloured(value, like) else value
    if not bool(value.isfinite().all()):
        raise ValueError(f"{origin} holds weights that are too large for {like.dtype}, in {name}")
    return value


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
