"""Images for the page: the augmented views of a run, and the nearest neighbours of its backbone.

Shapes: N images, B images of a bank, V views, U uniform numbers per view, D features, C channels,
H and W pixels, S pixels of a view's side, K classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from antipode.data.loader import Loader
from antipode.data.sources.source import Decoded, Source
from antipode.data.views.operation import Standardise
from antipode.data.views.views import Views
from antipode.reporting.curves import short
from antipode.reporting.thumbnails import tile, visible

SHOWN = 6  # images on the sheet of views
ACROSS = 8  # views of each of these images
QUERIES = 8  # query images that are shown with their neighbours
NEAR = 8  # neighbours of each query
LARGEST = 96  # largest side of a tile, in pixels


def view_sheet(source: Source, make: Views, seed: int, most: int = ACROSS) -> dict[str, Any]:
    """Return a few images and the views of them that a run with this seed uses in its first epochs.

    `most` is the maximum number of epochs.
    """
    ids = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))[:SHOWN]
    epochs = max(1, min(most, ACROSS // make.count))
    loader = Loader(source, make, batch=1, epochs=epochs, seed=seed)
    drawn = [
        view
        for epoch in range(epochs)
        for view in views_of(source, ids, make, loader.uniforms(epoch, ids))
    ]
    side = min(LARGEST, max(make.sizes))
    normal = None if _standardised(make) else make.normal
    rows = []
    for place, at in enumerate(ids.tolist()):
        views = [visible(view[place], normal) for view in drawn]
        rows.append(
            {
                "src": tile(full_image(source, at), side),
                "views": [tile(view, side) for view in views],
            }
        )
    return {"rows": rows, "count": make.count, "epochs": epochs, "side": side}


def views_of(source: Source, ids: Tensor, make: Views, chance: Tensor) -> list[Tensor]:
    """Return V views (N,C,S,S) of the images `ids` (N,), made in the same way as by the loader.

    The uniform numbers `chance` (N,V,U) determine the augmentations.
    """
    if not isinstance(source, Decoded):
        return make.apply(source.take(ids)[0], chance)
    cuts = [
        make.cut(full_image(source, at), uniforms)
        for at, uniforms in zip(ids.tolist(), chance, strict=True)
    ]
    return make.finish([torch.stack(view) for view in zip(*cuts, strict=True)], chance)


def full_image(source: Source, at: int) -> Tensor:
    """Return an image uint8 (C,H,W) without cropping it to its centre.

    If the image cannot be read, the next one takes its place.
    """
    return (
        source.read_or_next(at)[1]
        if isinstance(source, Decoded)
        else source.take(torch.tensor([at]))[0][0]
    )


def _standardised(make: Views) -> bool:
    """Return True if a view is standardised by its own statistics, which cannot be undone."""
    return any(
        isinstance(operation, Standardise) for view in make.policy for operation in view.operations
    )


def neighbours(
    queries: Tensor,
    query_images: Source,
    bank: Tensor,
    bank_images: Source,
    classes: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the nearest neighbours of queries (N,D) in a bank (B,D) by cosine similarity.

    "rows" has a few of the queries, with the images of their neighbours. "right" is the percentage
    of the neighbours of all queries that have the query's label. "chance" is the percentage that
    is expected by chance. Both are None if there are no labels.
    """
    nearest = (F.normalize(queries) @ F.normalize(bank).T).topk(min(NEAR, len(bank)), 1)
    near = nearest.indices.tolist()
    scores = nearest.values.tolist()
    side = side_of(query_images)
    rows = []
    for query in _query_indices(query_images.labels, len(queries)):
        close = [
            {
                "src": tile(centre(bank_images, at), side),
                "label": class_of(bank_images.labels, at, classes),
                "score": short(score),
                "right": same(query_images.labels, query, bank_images.labels, at),
            }
            for at, score in zip(near[query], scores[query], strict=True)
        ]
        label = class_of(query_images.labels, query, classes)
        rows.append({"src": tile(centre(query_images, query), side), "label": label, "near": close})
    matches = [
        same(query_images.labels, query, bank_images.labels, at)
        for query, row in enumerate(near)
        for at in row
    ]
    known = [match for match in matches if match is not None]
    share = 100 * sum(known) / len(known) if known else None
    chance = _chance(query_images.labels, bank_images.labels) if known else None
    return {
        "rows": rows,
        "side": side,
        "bank": len(bank),
        "queries": len(queries),
        "right": share,
        "chance": chance,
    }


def _chance(labels: Tensor | None, others: Tensor | None) -> float:
    """Return the percentage of all pairs of a query and an image of the bank that share a class."""
    assert labels is not None and others is not None
    if labels.ndim > 1:
        return 100 * float(((labels == 1).float() @ (others == 1).float().T > 0).float().mean())
    known = labels[labels >= 0], others[others >= 0]
    size = int(max(part.max() for part in known)) + 1
    shares = (torch.bincount(part, minlength=size).double() / len(part) for part in known)
    return 100 * float(torch.stack(list(shares)).prod(0).sum())


def _query_indices(labels: Tensor | None, n: int) -> list[int]:
    """Return the indices of the queries to show, from as many classes as possible.

    The first image of each class is taken, then further images in their order.
    """
    if labels is None or labels.ndim != 1:
        return list(range(min(QUERIES, n)))
    first: dict[int, int] = {}
    for at, label in enumerate(labels.tolist()):
        first.setdefault(label, at)
    taken = set(first.values())
    return sorted([*first.values(), *(at for at in range(n) if at not in taken)][:QUERIES])


def same(labels: Tensor | None, at: int, others: Tensor | None, other: int) -> bool | None:
    """Return whether two images share a class, or None if one of them has no label.

    Labels have shape (N,), or (N,K) for images of several classes.
    """
    if labels is None or others is None:
        return None
    first, second = labels[at], others[other]
    if first.ndim:
        return bool(((first == 1) & (second == 1)).any())
    return None if int(first) < 0 or int(second) < 0 else bool(first == second)


def class_of(labels: Tensor | None, at: int, classes: Sequence[str] | None) -> str:
    """Return the name of the class of an image, or of all its classes; empty without a label."""
    if labels is None:
        return ""
    present = (
        (labels[at] == 1).nonzero().flatten().tolist() if labels.ndim > 1 else [int(labels[at])]
    )
    return ", ".join(class_name(label, classes) for label in present if label >= 0)


def class_name(label: int, classes: Sequence[str] | None) -> str:
    """Return the name of a class, or its number if it has no name."""
    return classes[label] if classes and label < len(classes) else f"class {label}"


def side_of(source: Source) -> int:
    """Return the side of a tile for the images of a source, in pixels."""
    return min(LARGEST, int(getattr(source, "size", LARGEST)))


def centre(source: Source, at: int) -> Tensor:
    """Return an image uint8 (C,H,W) as evaluations use it."""
    return source.take(torch.tensor([at]))[0][0]
