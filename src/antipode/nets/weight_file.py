"""Files of weights: safetensors, and torch files of tensors and plain values.

The header of a safetensors file that antipode writes describes the network. It also states a digest
of the description and of all tensors, which is compared whenever the tensors are read. Whatever a
file holds, reading it gives tensors, a ValueError of one sentence, or an OSError.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from antipode import json_text
from antipode.nets.backbone import Stem
from antipode.nets.torch_file import read_torch, unreadable

WEIGHTS = "backbone.safetensors"  # the file of weights in a run folder
FORMAT = 1  # the number of the header's format; files without a number state no digest
VERSION = "antipode"  # the entry of the header that holds the format
DIGEST = "antipode.digest"
LARGEST = 2**24  # bytes of a header; that of a ResNet-152 has 0.1 MB


class Unchecked(UserWarning):
    """Weights of a run have no digest, so damage to them cannot be noticed."""


class Normal(NamedTuple):
    """Mean and standard deviation per channel that normalise the pixels for a network."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class About(NamedTuple):
    """What a file states about the network of its weights. A value of None is not stated.

    Args:
        backbone: the name of the network, such as "resnet50".
        stem: the name of the stem of a ResNet.
        channels: the number of channels of its images.
        size: the side in pixels of the views that it was trained on.
        policy: the view policy that it was trained with.
        normal: the normalisation of its pixels.
    """

    backbone: str | None = None
    stem: Stem | None = None
    channels: int | None = None
    size: int | None = None
    policy: str | None = None
    normal: Normal | None = None


# Write


def packed(state: Mapping[str, Tensor], about: About) -> bytes:
    """Return the content of a safetensors file with these tensors and this description.

    Equal tensors and descriptions give equal bytes. The library would write the entries of the
    header in random order.
    """
    entries = _entries(about)
    entries[DIGEST] = digest(state, entries)
    plain = save(dict(state))
    start = 8 + int.from_bytes(plain[:8], "little")
    described = {"__metadata__": dict(sorted(entries.items()))} | json.loads(plain[8:start])
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors must start at a multiple of 8 bytes
    return b"".join([len(header).to_bytes(8, "little"), header, memoryview(plain)[start:]])


def digest(state: Mapping[str, Tensor], entries: Mapping[str, str]) -> str:
    """Return the SHA-256 digest of the entries of a header and of tensors.

    It covers the name, type, shape and bytes of every tensor.
    """
    result = hashlib.sha256(json.dumps(sorted(entries.items())).encode())
    for name, value in sorted(state.items()):
        result.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        data: Any = value.contiguous().flatten().view(torch.uint8).numpy()
        result.update(memoryview(data))
    return result.hexdigest()


def check_finite(state: Mapping[str, Tensor], path: Path) -> None:
    """Raise ValueError if tensors that are to be written to a file hold NaN or infinite values."""
    bad = [name for name, value in state.items() if not bool(value.isfinite().all())]
    if bad:
        raise ValueError(
            f"{path} is not written: {len(bad)} of the {len(state)} tensors of the network hold "
            f"NaN or infinite values, the first: {bad[0]}"
        )


def _entries(about: About) -> dict[str, str]:
    """Return the entries of a header that describe a network."""
    stated = {name: value for name, value in about._asdict().items() if value is not None}
    normal = stated.pop("normal", None)
    pixels = {} if normal is None else {"pixels": json.dumps(normal._asdict())}
    texts = {name: str(value) for name, value in stated.items()}
    return {"format": "pt", VERSION: str(FORMAT), **texts, **pixels}


# Read


def file_of(path: Path) -> Path:
    """Return the file of weights of a run folder; a path that is not a folder is returned as is."""
    return path / WEIGHTS if path.is_dir() else path


def read(path: Path) -> dict[Any, Any]:
    """Return the content of a safetensors file, or of a torch file of tensors and plain values.

    A digest in the header is compared with the tensors.
    """
    _check_exists(path)
    if path.suffix == ".safetensors":
        entries, state = _read_safetensors(path)
        _check_digest(path, entries, state)
        return state
    content = read_torch(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a state dict")
    return content


def about(path: Path) -> About:
    """Return what the header of a safetensors file, or of that of a run folder, says.

    Entries that other software wrote under the same names are ignored if they have another form.
    Reading the tensors checks the digest; this does not.
    """
    path = file_of(path)
    if path.suffix != ".safetensors" or not path.is_file():
        return About()
    entries, _ = _read_safetensors(path, tensors=False)
    stem = entries.get("stem")
    return About(
        backbone=entries.get("backbone"),
        stem=stem if stem in get_args(Stem) else None,  # type: ignore[arg-type]
        channels=_number(entries.get("channels"), 1024),
        size=_number(entries.get("size"), 8192),
        policy=entries.get("policy"),
        normal=_normal(entries.get("pixels", "")),
    )


def stated_stem(path: Path) -> Stem | None:
    """Return the stem that a file of weights states, None if nothing does.

    It is in the header, or in the recipe of the run folder that holds the weights or checkpoint.
    """
    path = file_of(path)
    stem = about(path).stem
    if stem is not None:
        return stem
    if path.name == WEIGHTS:
        folder = path.parent
    elif path.parent.name == "checkpoints":
        folder = path.parent.parent
    else:
        return None
    try:
        stored = json_text.read(folder / "recipe.json")["backbone"]["stem"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return stored if stored in get_args(Stem) else None


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")


def _number(text: str | None, most: int) -> int | None:
    """Return the whole number from 1 to `most` that a text states, or None."""
    if not text or not re.fullmatch(r"[0-9]{1,9}", text):
        return None
    return int(text) if 1 <= int(text) <= most else None


def _normal(text: str) -> Normal | None:
    """Return the normalisation that an entry states, or None if it has another form."""
    try:
        content = json_text.parse(text, "pixels")
        return Normal(*(tuple(float(value) for value in content[name]) for name in Normal._fields))
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def _read_safetensors(path: Path, tensors: bool = True) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the entries of the header, and the tensors by name if they are asked for."""
    with path.open("rb") as file:  # raises OSError with the name of the file
        length = int.from_bytes(file.read(8), "little")
    if length > LARGEST:
        raise ValueError(
            f"the weights in {path} cannot be read (its header would have {length:,} bytes, and "
            f"headers of at most {LARGEST:,} bytes are read)"
        )
    try:
        with safe_open(path, "pt") as content:
            names = content.keys() if tensors else ()
            state = {name: content.get_tensor(name) for name in names}
            return dict(content.metadata() or {}), state
    except Exception as error:  # a damaged file raises errors of many types
        raise unreadable(path, error) from None


def _check_digest(path: Path, entries: dict[str, str], state: Mapping[str, Tensor]) -> None:
    """Raise ValueError if tensors or header differ from what antipode wrote.

    Warns if a run's own file states no digest, as those of earlier versions do.
    """
    if VERSION not in entries and DIGEST not in entries:
        if path.name == WEIGHTS:
            warnings.warn(
                f"{path} was written by an earlier version of antipode and states no digest, so "
                "damage to it cannot be noticed",
                Unchecked,
                stacklevel=1,  # one place in the code, so that Python shows it once for each file
            )
        return
    version = _number(entries.get(VERSION), 10**9)
    if version is not None and version > FORMAT:
        raise ValueError(
            f"{path} was written by a newer version of antipode (format {version}, this one reads "
            f"up to {FORMAT}): update antipode"
        )
    stated = entries.pop(DIGEST, "")
    if digest(state, entries) != stated:
        raise ValueError(
            f"{path} is damaged or was changed: its tensors and its header do not have the digest "
            "that the header states"
        )
