"""Images as small pictures inside the page: one tile each, or many in one atlas. C channels, H W pixels."""

import base64
import io
from collections.abc import Sequence

import torch
from PIL import Image, features
from torch import Tensor

from antipode.data.views.views import Normalise

SMALL = 48  # up to so many pixels a tile is kept to the bit: it is enlarged on the page, and artefacts with it


def tile(image: Tensor, side: int) -> str:
    """A data URI of an image uint8 (C,H,W), reduced so that its longer side is at most `side` pixels."""
    return _uri(_reduced(_picture(image), side), lossless=side <= SMALL)


def atlas(images: Sequence[Tensor], side: int, columns: int) -> str:
    """A data URI of many images uint8 (C,H,W) in rows of `columns` square tiles."""
    sheet = Image.new("RGB", (side * columns, side * -(-len(images) // columns)))
    for place, image in enumerate(images):
        small = _reduced(_picture(image), side).convert("RGB")
        left, top = side * (place % columns), side * (place // columns)
        sheet.paste(small, (left + (side - small.width) // 2, top + (side - small.height) // 2))
    return _uri(sheet, lossless=False)


def visible(view: Tensor, normal: Normalise | None) -> Tensor:
    """A view (C,S,S) as uint8: normalised numbers back to colours, or stretched to the range where none will."""
    if normal is not None:
        shown = view.cpu() * normal.std.cpu() + normal.mean.cpu()
    else:
        low, high = view.amin(), view.amax()
        shown = (view - low) / (high - low).clamp(min=1e-6)
    return (shown.clamp(0, 1) * 255).round().to(torch.uint8)


def _picture(image: Tensor) -> Image.Image:
    """Grey for one channel or two, the first three as colours for more: what a screen can show of them."""
    shown = image[:3] if image.shape[0] >= 3 else image[:1]
    pixels = shown.permute(1, 2, 0).contiguous().cpu().numpy()
    return Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])


def _reduced(picture: Image.Image, side: int) -> Image.Image:
    longest = max(picture.size)
    if longest <= side:
        return picture
    width, height = (max(1, round(edge * side / longest)) for edge in picture.size)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _uri(picture: Image.Image, *, lossless: bool) -> str:
    """WebP, or PNG where this Pillow cannot write WebP."""
    buffer, form = io.BytesIO(), "webp" if features.check("webp") else "png"
    if form == "webp":
        picture.save(buffer, "WEBP", lossless=lossless, quality=80, method=4)
    else:
        picture.save(buffer, "PNG", optimize=True)
    return f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode()}"
