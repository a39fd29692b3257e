"""Where JPEG files are decoded: by the workers of a loader, in batches by a GPU (nvJPEG), or both.

| name | JPEG is decoded by |
|---|---|
| cpu | the workers |
| gpu | the GPU |
| both | the workers for a random quarter of the images, and the GPU for the others |
"""

import io
import os
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from antipode.data.chunks import Maker
from antipode.data.device_decode import Decode
from antipode.data.encoded import suits
from antipode.data.nvjpeg import NvJpeg, NvJpegError
from antipode.data.sources.decode import decode as decode_on_host
from antipode.data.sources.source import Decoded, Source

ON_DEVICE = ("gpu", "both")
# GPUs (by compute capability) with an engine that decodes JPEG beside the computation:
# A100 and A30, H100 and H200, B200 and B300
ENGINES = ((8, 0), (9, 0), (10, 0), (10, 3))


def choose_decoder(where: str, source: Source, views: Maker, device: torch.device) -> Decode | None:
    """Return the decoder of a loader on the device, None if only its workers decode.

    Anything but "gpu" and "both" means the workers. Images in memory need no decoder. Raises
    ValueError if the GPU cannot decode the files of the source for these views.
    """
    if where not in ON_DEVICE or not isinstance(source, Decoded):
        return None
    decoder = device_decoder(device) if suits(source, views) else None
    if decoder is None:
        raise ValueError(
            f"data.decoder={where} needs a CUDA device with nvJPEG, colour images most of which "
            "are baseline JPEG, and views that begin with a random crop: use data.decoder=cpu"
        )
    return decoder


def evaluation_decoder(source: Source, views: Maker, device: torch.device) -> dict[str, Any]:
    """Return the arguments of a loader that trains a classifier."""
    where = evaluation_place(source, views, device)
    return loader_arguments(where, source, views, device)


def evaluation_place(source: Source, views: Maker, device: torch.device) -> str:
    """Return "cpu", "gpu" or "both": who decodes the images on which a classifier is trained.

    A GPU with an engine for JPEG decodes if its pixels are those of the workers. The environment
    variable ANTIPODE_DECODER overrides this: cpu for the workers, gpu or both where the GPU can.
    """
    asked = os.environ.get("ANTIPODE_DECODER", "auto")
    if asked not in ("auto", "cpu", *ON_DEVICE):
        raise ValueError(f"ANTIPODE_DECODER must be auto, cpu, gpu or both, not {asked!r}")
    if device.type != "cuda" or not isinstance(source, Decoded) or not suits(source, views):
        return "cpu"
    if asked == "auto":
        return "gpu" if has_engine(device) and has_pixels_of_host(device) else "cpu"
    return asked


def loader_arguments(
    where: str, source: Source, views: Maker, device: torch.device
) -> dict[str, Any]:
    """Return the arguments `decoder` and `share` of a loader."""
    return {
        "decoder": choose_decoder(where, source, views, device),
        "share": where == "both",
    }


def has_engine(device: torch.device) -> bool:
    """Return True if the device is a GPU with an engine for JPEG."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in ENGINES


@cache
def device_decoder(device: torch.device) -> Decode | None:
    """Return a decoder on a GPU, or None if there is none.

    It is nvJPEG itself if its library is found, else by way of torchcodec or of torchvision.
    """
    if device.type != "cuda":
        return None
    with suppress(RuntimeError, NvJpegError):
        own = NvJpeg(device)
        if _works(own):
            return own
    try:
        codec: Any = import_module("torchcodec.decoders").decode_jpeg  # optional
    except (ImportError, AttributeError, OSError, RuntimeError):  # none, too old, another torch's
        codec = None
    if codec is not None:
        decode: Decode = lambda files, _: codec(files, mode="RGB", device=device)  # noqa: E731
        if _works(decode):
            return decode
    import torchvision.io  # noqa: F401, PLC0415  (loads torch.ops.image)

    operator = getattr(torch.ops.image, "decode_jpegs_cuda", None)
    if operator is None:
        return None
    decode = lambda files, _: operator(files, 3, device)  # noqa: E731  (3: RGB)
    return decode if _works(decode) else None


@cache
def has_pixels_of_host(device: torch.device) -> bool:
    """Return True if the device decodes a picture to the workers' pixels, up to one grey level."""
    decode = device_decoder(device)
    gaps = None if decode is None else _gaps(decode)
    return gaps is not None and int(gaps.max()) <= 1


def _works(decode: Decode) -> bool:
    """Return True if a decoder decodes a picture to about the pixels of the workers."""
    gaps = _gaps(decode)
    return gaps is not None and float(gaps.mean()) < 20


def _gaps(decode: Decode) -> Tensor | None:
    """Return how far the pixels of a picture are from those of the workers, in grey levels.

    Returns None if the decoder fails, in whatever way: the workers can always decode.
    """
    coarse = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((96, 64), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=90)  # with colour at half the size, as most photographs
    data = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    try:
        image = decode([data], [(64, 96)])[0].cpu().float()
    except Exception:  # such as a missing library, or one of another version
        return None
    expected = decode_on_host(file.getvalue()).float()
    return (image - expected).abs() if image.shape == expected.shape else None
