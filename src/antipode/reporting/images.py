"""Pictures of images: what augmentation does to them, and which of them a backbone takes for neighbours.

N images, B of a bank, V views, U uniform numbers a view, D features, C channels, S pixels of a view's side.
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

SHOWN, ACROSS = 6, 8  # images on the sheet of views, and views of each
QUERIES, NEAR = 8, 8
LARGEST = 96  # pixels of a tile


def view_sheet(source: Source, make: Views, seed: int, most: int = ACROSS) -> dict[str, Any]:
    """A few images and the very views that a run with this seed sees of them in its first epochs, `most` of them."""
    ids = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))[:SHOWN]
    epochs = max(1, min(most, ACROSS // make.count))
    loader = Loader(source, make, batch=1, epochs=epochs, seed=seed)
    seen = [
        view
        for epoch in range(epochs)
        for view in views_of(source, ids, make, loader.uniforms(epoch, ids))
    ]
    side, plain = min(LARGEST, max(make.sizes)), not _standardised(make)
    rows = []
    for place, at in enumerate(ids.tolist()):
        shown = [visible(view[place], make.normal if plain else None) for view in seen]
        rows.append(
            {
                "src": tile(atomic_write(source, at), side),
                "views": [tile(view, side) for view in shown],
            }
        )
    return {"rows": rows, "count": make.count, "epochs": epochs, "side": side}


def views_of(source: Source, ids: Tensor, make: Views, chance: Tensor) -> list[Tensor]:
    """V views (N,C,S,S) of the images `ids` (N,), decided by uniform numbers (N,V,U), made as the loader makes them."""
    if not isinstance(source, Decoded):
        return make.apply(source.take(ids)[0], chance)
    cuts = [
        make.cut(atomic_write(source, at), mine)
        for at, mine in zip(ids.tolist(), chance, strict=True)
    ]
    return make.finish([torch.stack(view) for view in zip(*cuts, strict=True)], chance)


def atomic_write(source: Source, at: int) -> Tensor:
    """All of an image uint8 (C,H,W), not its centre; the next takes the place of one that cannot be read."""
    return (
        source.nearest(at)[1]
        if isinstance(source, Decoded)
        else source.take(torch.tensor([at]))[0][0]
    )


def _standardised(make: Views) -> bool:
    return any(
        isinstance(operation, Standardise) for view in make.policy for operation in view.operations
    )


def neighbours(
    queries: Tensor, shown: Source, held: Tensor, bank: Source, classes: Sequence[str] | None
) -> dict[str, Any]:
    """Queries (N,D) and their nearest of a bank (B,D) by cosine, and how often these share the query's label."""
    found = (F.normalize(queries) @ F.normalize(held).T).topk(min(NEAR, len(held)), 1)
    near, scores = found.indices.tolist(), found.values.tolist()
    side, rows = side_of(shown), []
    for query in _one_of_each(shown.labels, len(queries)):
        close = [
            {
                "src": tile(centre(bank, at), side),
                "label": class_of(bank.labels, at, classes),
                "score": short(score),
                "right": same(shown.labels, query, bank.labels, at),
            }
            for at, score in zip(near[query], scores[query], strict=True)
        ]
        label = class_of(shown.labels, query, classes)
        rows.append({"src": tile(centre(shown, query), side), "label": label, "near": close})
    judged = [
        same(shown.labels, query, bank.labels, at) for query, row in enumerate(near) for at in row
    ]
    known = [one for one in judged if one is not None]
    share = 100 * sum(known) / len(known) if known else None
    chance = _chance(shown.labels, bank.labels) if known else None
    return {
        "rows": rows,
        "side": side,
        "bank": len(held),
        "queries": len(queries),
        "right": share,
        "chance": chance,
    }


def _chance(labels: Tensor | None, others: Tensor | None) -> float:
    """How often, in percent, a query and any image of the bank share a class."""
    assert labels is not None and others is not None
    if labels.ndim > 1:
        return 100 * float(((labels == 1).float() @ (others == 1).float().T > 0).float().mean())
    one, two = labels[labels >= 0], others[others >= 0]
    size = int(max(one.max(), two.max())) + 1
    shares = (torch.bincount(part, minlength=size).double() / len(part) for part in (one, two))
    return 100 * float(torch.stack(list(shares)).prod(0).sum())


def _one_of_each(labels: Tensor | None, n: int) -> list[int]:
    """Queries of as many classes as there is room for: the first image of each, in the order of the draw."""
    if labels is None or labels.ndim != 1:
        return list(range(min(QUERIES, n)))
    first: dict[int, int] = {}
    for at, label in enumerate(labels.tolist()):
        first.setdefault(label, at)
    taken = set(first.values())
    return sorted([*first.values(), *(at for at in range(n) if at not in taken)][:QUERIES])


def same(labels: Tensor | None, at: int, others: Tensor | None, other: int) -> bool | None:
    """Whether two images share a class; None where one has no label. Labels (N,), or (N,K) of several classes."""
    if labels is None or others is None:
        return None
    one, two = labels[at], others[other]
    if one.ndim:
        return bool(((one == 1) & (two == 1)).any())
    return None if int(one) < 0 or int(two) < 0 else bool(one == two)


def class_of(labels: Tensor | None, at: int, classes: Sequence[str] | None) -> str:
    """The class of an image, or its classes, by name; empty where it has none."""
    if labels is None:
        return ""
    present = (
        (labels[at] == 1).nonzero().flatten().tolist() if labels.ndim > 1 else [int(labels[at])]
    )
    return ", ".join(class_name(one, classes) for one in present if one >= 0)


def class_name(label: int, classes: Sequence[str] | None) -> str:
    """The name of a class, or its number."""
    return classes[label] if classes and label < len(classes) else f"class {label}"


def side_of(source: Source) -> int:
    """Pixels of a tile of its images."""
    return min(LARGEST, int(getattr(source, "size", LARGEST)))


def centre(source: Source, at: int) -> Tensor:
    """An image uint8 (C,H,W) as evaluations see it."""
    return source.take(torch.tensor([at]))[0][0]
