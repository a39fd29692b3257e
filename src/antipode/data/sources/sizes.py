"""The sizes of the images of a data set, from a sample of them."""

import io
import statistics

import torch

from antipode.data.sources import headers
from antipode.data.sources.source import Decoded, Memory, Source

SAMPLE = 32  # images whose headers are read

Size = tuple[int, int]  # width and height in pixels


def sampled_sizes(source: Source) -> list[Size]:
    """Return the sizes of some evenly spaced images.

    Only the headers of files are read. The list is empty for a Dataset that was passed from Python,
    because reading its items may draw random numbers.
    """
    if isinstance(source, Memory):
        height, width = source.images.shape[2:]
        return [(int(width), int(height))]
    encoded = getattr(source.read, "encoded", None) if isinstance(source, Decoded) else None
    if encoded is None:
        return []
    sizes: list[Size] = []
    positions = torch.linspace(0, len(source) - 1, SAMPLE).round().long().tolist()
    for index in dict.fromkeys(positions):
        try:
            content = encoded(index)
            if content is not None:
                info = headers.header(io.BytesIO(content))
                sizes.append((info.width, info.height))
        except (ValueError, OSError):  # reported when the image is needed
            continue
    return sizes


def median_side(sizes: list[Size]) -> int | None:
    """Return the median of the shorter sides, None without any size."""
    return int(statistics.median(map(min, sizes))) if sizes else None
