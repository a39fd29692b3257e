"""What a packed data set stores of an image: the bytes of its file, pixels, or JPEG."""

import io

import torch
from PIL import Image
from torch import Tensor

from antipode.data.sources.source import Decoded, Skip, Source

# bytes, height, width; height and width are 0 if the bytes are an encoded image
Stored = tuple[bytes, int, int]


def encode(source: Source, size: int | None, quality: int | None, at: int) -> Stored | Skip:
    """Return what is stored of an image.

    The image is decoded in any case, so that a packed data set contains no broken images.
    """
    try:
        if isinstance(source, Decoded):
            image = source.read(at)
            encoded = getattr(source.read, "encoded", None)
            data = encoded(at) if encoded and size is None else None
            if data is not None:
                return data, 0, 0
        else:
            image = source.take(torch.tensor([at]))[0][0].cpu()
        if size is not None and min(image.shape[1:]) > size:
            image = _resized(image, size)
        if quality is not None:
            return _jpeg_bytes(image, quality), 0, 0
        return _pixel_bytes(image), *image.shape[1:]
    except (ValueError, OSError) as error:
        return Skip(name_of(source, at), str(error))


def _resized(image: Tensor, size: int) -> Tensor:
    """Return an image (C,H,W) whose shorter side has `size` pixels."""
    # imported here, because it takes longer than the rest of a command that packs nothing
    from torchvision.transforms.v2 import functional as F  # noqa: PLC0415

    resized: Tensor = F.resize(image, [size], antialias=True)
    return resized


def _pixel_bytes(image: Tensor) -> bytes:
    return image.permute(1, 2, 0).contiguous().numpy().tobytes()


def _jpeg_bytes(image: Tensor, quality: int) -> bytes:
    if len(image) not in (1, 3):
        raise ValueError(f"has {len(image)} channels, but JPEG can store only 1 or 3")
    file = io.BytesIO()
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(pixels if len(image) == 3 else pixels[:, :, 0])
    picture.save(file, "JPEG", quality=quality)
    return file.getvalue()


def name_of(source: Source, at: int) -> str:
    """Return the name of an image."""
    return source.names[at] if isinstance(source, Decoded) else f"image {at}"
