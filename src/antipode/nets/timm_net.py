"""Networks of timm by name, with arguments: `timm:NAME?img_size=64,drop_path_rate=0.1`.

timm is imported only when a network is built, because the import takes seconds.
"""

import inspect
import math
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from antipode import json_text
from antipode.limits import NUMBERS
from antipode.names import brief, closest, did_you_mean

PREFIX = "timm:"
SYNTAX = "write timm:NAME?key=value,key=value"
# arguments of timm.create_model that antipode sets itself
OURS = {
    "num_classes": "a backbone has no classifier",
    "in_chans": "the number of channels follows from the images",
    "pretrained": "set backbone.weights to a file to start from its weights",
    "checkpoint_path": "set backbone.weights to a file to start from its weights",
    "features_only": "a backbone returns features (N,D)",
    "device": "set train.device",
    "dtype": "set train.precision",
}
LARGEST = 8192  # of a whole number among the arguments, so that a name cannot take all memory
# the plain vision transformers of timm, and modules of Python with torchvision's or timm's class
VIT = re.compile(
    r"timm:(test_)?(vit|deit|deit3|beit|beitv2|eva|eva02|flexivit|aimv2)_\w|"
    r"python:VisionTransformer$"
)


def parse(name: str) -> tuple[str, dict[str, Any]]:
    """Return the model and the arguments of a name `timm:MODEL?key=value,...`.

    A value is read as JSON if it is JSON, so that numbers, true, false and null keep their types.

    Raises:
        ValueError: if the text has another form or names an argument that antipode sets.
    """
    model, mark, text = name.removeprefix(PREFIX).partition("?")
    arguments: dict[str, Any] = {}
    for part in text.split(",") if mark else []:
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if not (sign and value and key.isidentifier()):
            raise ValueError(f"{brief(part)} in {brief(name)} is not an argument: {SYNTAX}")
        if key in OURS:
            raise ValueError(f"{key} cannot be set in {brief(name)}: {OURS[key]}")
        if key in arguments:
            raise ValueError(f"{key} is given twice in {brief(name)}")
        arguments[key] = _value(value)
        _check_number(name, key, arguments[key])
    if not model:
        raise ValueError(f"{brief(name)} names no model of timm: {SYNTAX}")
    return model, arguments


def _value(text: str) -> Any:
    """Return the value of an argument: a number, true, false, null, or the text itself."""
    word = text.lower()
    if word in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[word]
    try:
        return json_text.parse(text, "the value")
    except ValueError:
        return text


def _check_number(name: str, key: str, value: Any) -> None:
    """Raise ValueError for a number that is not finite or too large for a network."""
    if key == "img_size" and (type(value) is not int or value < 1):
        raise ValueError(f"img_size in {brief(name)} must be a number of pixels, not {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} in {brief(name)} must be finite, not {value}")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"{key} in {brief(name)} must be at most {LARGEST}, not {value}")


def stated_size(name: str) -> int | None:
    """Return the side in pixels that a name states as `img_size`, None if it states none.

    A network with `dynamic_img_size=true` takes other sizes, too.
    """
    if not name.startswith(PREFIX):
        return None
    _, arguments = parse(name)
    return None if arguments.get("dynamic_img_size") else arguments.get("img_size")


def is_vit(name: str) -> bool:
    """Return True if a backbone's name is that of a vision transformer."""
    return VIT.match(name.partition("?")[0]) is not None


def library() -> Any:
    """Return the module timm; raise ValueError if it is not installed."""
    try:
        return import_module("timm")
    except ImportError:
        raise ValueError("timm's models need an extra: pip install 'antipode[timm]'") from None


def create_arguments(name: str, size: int | None) -> tuple[str, dict[str, Any]]:
    """Return model and arguments for `timm.create_model`, for images of `size` pixels.

    Many transformers take images of one size only. Theirs is `img_size`, or `size` if the name
    does not state it, or that of timm's weights.

    Raises:
        ValueError: if timm has no such model, or if the name states another size.
    """
    timm = library()
    model, arguments = parse(name)
    if not timm.is_model(model):
        near = closest(model, timm.list_models(), 0.6)  # timm has more than 1,000 names
        hint = "" if near is None else f", did you mean {near!r}?"
        raise ValueError(f"timm has no model {model!r}{hint}")
    stated = stated_size(name)
    if stated is not None and size is not None and stated != size:
        raise ValueError(
            f"{name} takes images of {stated} px, but the views have {size} px: set views.size="
            f"{stated}, or change img_size"
        )
    has_one_size = bool(timm.get_pretrained_cfg(model).fixed_input_size)
    if has_one_size and size is not None and "img_size" not in arguments:
        arguments["img_size"] = size
    return model, arguments


def image_size(name: str, size: int | None) -> int | None:
    """Return the side of the images of a network in pixels, None if any size fits."""
    model, arguments = create_arguments(name, size)
    if "img_size" in arguments:
        return size or int(arguments["img_size"])
    config = library().get_pretrained_cfg(model)
    return int(config.input_size[-1]) if config.fixed_input_size and size is None else size


def network(name: str, channels: int, size: int | None, classes: int = 0) -> nn.Module:
    """Build a network of timm, without classifier unless `classes` is above 0.

    Args:
        name: `timm:NAME`, with arguments or without.
        channels: the number of channels of the images.
        size: the side of the images in pixels; None uses the one that the name or timm states.
        classes: the number of outputs of a classifier.
    """
    model, arguments = create_arguments(name, size)
    timm = library()
    ours = {"num_classes": classes, "in_chans": channels}
    if not parse(name)[1]:
        return _created(timm, name, model, ours | arguments)
    with torch.device("meta"):  # wrong or huge arguments are found before memory is allocated
        sketch = _created(timm, name, model, ours | arguments)
    count = sum(tensor.numel() for tensor in (*sketch.parameters(), *sketch.buffers()))
    if count > NUMBERS:
        raise ValueError(f"{name} stores {count:,} numbers, but at most {NUMBERS:,} are allowed")
    return _created(timm, name, model, ours | arguments)


def _created(timm: Any, name: str, model: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Call timm.create_model; raise ValueError with one sentence if the arguments do not fit."""
    try:
        net: nn.Module = timm.create_model(model, **arguments)
    except Exception as error:  # every model of timm checks its arguments in its own way
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise
        unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if unexpected:
            hint = did_you_mean(unexpected[1], _accepted(timm, model))
            raise ValueError(f"timm's {model} has no argument {unexpected[1]!r}{hint}") from None
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ValueError(f"timm cannot build {name}: {reason[:300]}") from error
    return net


def _accepted(timm: Any, model: str) -> list[str]:
    """Return the names of the arguments of a model's class."""
    with torch.device("meta"):
        net = timm.create_model(model)
    return [key for key in inspect.signature(type(net)).parameters if key not in OURS]


def patch_projection(net: nn.Module) -> nn.Module | None:
    """Return the layer of a vision transformer that embeds patches, None if there is none.

    It is `patch_embed` in timm and `conv_proj` in torchvision.
    """
    for module in net.modules():
        for name in ("patch_embed", "conv_proj"):
            found = getattr(module, name, None)
            if isinstance(found, nn.Module):
                return found
    return None


def freeze_patch_projection(net: nn.Module) -> None:
    """Keep the patch projection of a vision transformer at its initial weights.

    MoCo v3 (Chen, Xie and He 2021, section 4) found that this makes training stable.
    """
    found = patch_projection(net)
    if found is None:
        raise ValueError(
            "backbone.freeze_patches=true needs a vision transformer: this network has no patch "
            "projection"
        )
    found.requires_grad_(False)


def patches(net: nn.Module) -> int | None:
    """Return the number of patches of an image, None if the network does not state it."""
    count = getattr(patch_projection(net), "num_patches", None)
    return count if isinstance(count, int) else None


def embeddings(net: nn.Module) -> list[nn.Parameter]:
    """Return class tokens and position embeddings, which get no weight decay.

    timm's networks state their names (`no_weight_decay`). torchvision's are called `class_token`
    and `pos_embedding`.
    """
    found: list[nn.Parameter] = []
    for module in net.modules():
        stated = getattr(module, "no_weight_decay", None)
        names = set(stated()) if callable(stated) else set()
        for name, value in module.named_parameters():
            if name in names or name in ("class_token", "pos_embedding"):
                found.append(value)
    return found
