"""Where JPEG files are decoded: by the workers of a loader, or in batches by a GPU (nvJPEG)."""

import io
import os
from importlib import import_module
from typing import Any

import torch
from PIL import Image

from antipode.data.chunks import Maker
from antipode.data.device_decode import Decode
from antipode.data.encoded import suits
from antipode.data.sources.source import Decoded, Source

# GPUs (by compute capability) with an engine that decodes JPEG beside the computation:
# A100 and A30, H100 and H200, B200 and B300
ENGINES = ((8, 0), (9, 0), (10, 0), (10, 3))


def choose_decoder(where: str, source: Source, views: Maker, device: torch.device) -> Decode | None:
    """Return the decoder of a loader, None if its workers decode.

    `where` is "cpu" or "gpu", and anything but "gpu" means the workers. Images in memory need no
    decoder. Raises ValueError if the GPU cannot decode the files of the source for these views.
    """
    if where != "gpu" or not isinstance(source, Decoded):
        return None
    decoder = device_decoder(device) if suits(source, views) else None
    if decoder is None:
        raise ValueError(
            "data.decoder=gpu needs a CUDA device with nvJPEG, colour images most of which are "
            "baseline JPEG, and views that begin with a random crop: use data.decoder=cpu"
        )
    return decoder


def evaluation_decoder(source: Source, views: Maker, device: torch.device) -> Decode | None:
    """Return the decoder for the training of a classifier: the workers, so None, by default.

    The environment variable ANTIPODE_DECODER=gpu chooses the GPU where it can decode. Scores then
    differ slightly from those of other machines.
    """
    asked = os.environ.get("ANTIPODE_DECODER", "cpu")
    if asked not in ("cpu", "gpu"):
        raise ValueError(f"ANTIPODE_DECODER must be cpu or gpu, not {asked!r}")
    can = device.type == "cuda" and isinstance(source, Decoded) and suits(source, views)
    return choose_decoder("gpu", source, views, device) if asked == "gpu" and can else None


def has_engine(device: torch.device) -> bool:
    """Return True if the device is a GPU with an engine for JPEG."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in ENGINES


def device_decoder(device: torch.device) -> Decode | None:
    """Return torchcodec's or torchvision's decoder on a GPU (nvJPEG), or None if there is none."""
    if device.type != "cuda":
        return None
    try:
        codec: Any = import_module("torchcodec.decoders").decode_jpeg  # optional
    except (ImportError, AttributeError, OSError, RuntimeError):  # none, too old, another torch's
        codec = None
    if codec is not None:
        decode: Decode = lambda files: codec(files, mode="RGB", device=device)  # noqa: E731
        if _works(decode):
            return decode
    import torchvision.io  # noqa: F401, PLC0415  (loads torch.ops.image)

    operator = getattr(torch.ops.image, "decode_jpegs_cuda", None)
    if operator is None:
        return None
    decode = lambda files: operator(files, 3, device)  # noqa: E731  (3: RGB)
    return decode if _works(decode) else None


def _works(decode: Decode) -> bool:
    """Return True if a decoder decodes a small image."""
    file = io.BytesIO()
    Image.new("RGB", (32, 16), (200, 100, 50)).save(file, "JPEG")
    data = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    try:
        image = decode([data])[0]
        return image.shape == (3, 16, 32) and abs(int(image[0, 8, 16]) - 200) < 8
    except RuntimeError:  # nvJPEG is missing
        return False
