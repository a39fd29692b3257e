"""Small images for the page as data URIs: one tile each, or many in one atlas.

Shapes: C channels, H and W pixels, S pixels of a view's side.
"""

import base64
import io
from collections.abc import Sequence

import torch
from PIL import Image, features
from torch import Tensor

from antipode.data.views.views import Normalise

# Tiles of at most this many pixels are compressed without loss. The page enlarges them, which would
# make compression artefacts visible.
SMALL = 48


def tile(image: Tensor, side: int) -> str:
    """Return a data URI of an image uint8 (C,H,W).

    A larger image is reduced so that its longer side is `side` pixels.
    """
    return _uri(_reduced(_picture(image), side), lossless=side <= SMALL)


def atlas(images: Sequence[Tensor], side: int, columns: int, quality: int = 80) -> str:
    """Return a data URI of many images uint8 (C,H,W), in rows of `columns` square tiles."""
    sheet = Image.new("RGB", (side * columns, side * -(-len(images) // columns)))
    for place, image in enumerate(images):
        small = _reduced(_picture(image), side).convert("RGB")
        left = side * (place % columns)
        top = side * (place // columns)
        sheet.paste(small, (left + (side - small.width) // 2, top + (side - small.height) // 2))
    return _uri(sheet, lossless=False, quality=quality)


def visible(view: Tensor, normal: Normalise | None) -> Tensor:
    """Return a view (C,S,S) as uint8.

    Undoes the normalisation. If `normal` is None, the values are scaled to the full range instead.
    """
    if normal is not None:
        shown = view.cpu() * normal.std.cpu() + normal.mean.cpu()
    else:
        low, high = view.amin(), view.amax()
        shown = (view - low) / (high - low).clamp(min=1e-6)
    return (shown.clamp(0, 1) * 255).round().to(torch.uint8)


def _picture(image: Tensor) -> Image.Image:
    """Return an image (C,H,W) as a Pillow image.

    One or two channels: the first, in grey. Three or more channels: the first three, as RGB.
    """
    channels = image[:3] if image.shape[0] >= 3 else image[:1]
    pixels = channels.permute(1, 2, 0).contiguous().cpu().numpy()
    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])


def _reduced(picture: Image.Image, side: int) -> Image.Image:
    """Return the picture, reduced so that its longer side is at most `side` pixels."""
    longest = max(picture.size)
    if longest <= side:
        return picture
    width, height = (max(1, round(edge * side / longest)) for edge in picture.size)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _uri(picture: Image.Image, *, lossless: bool, quality: int = 80) -> str:
    """Return a data URI in WebP format, or in PNG format if Pillow was built without WebP."""
    buffer = io.BytesIO()
    form = "webp" if features.check("webp") else "png"
    if form == "webp":
        picture.save(buffer, "WEBP", lossless=lossless, quality=quality, method=4)
    else:
        picture.save(buffer, "PNG", optimize=True)
    return f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode()}"
