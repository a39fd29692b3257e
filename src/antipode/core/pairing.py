"""Pairings: which view is compared with which, as lists of (query views, key views).

Views are numbered from 0, and the number of views is one more than the largest number.
"""

Pairing = list[tuple[tuple[int, ...], tuple[int, ...]]]


def one_way() -> Pairing:
    """Return MoCo's pairing: the first view is the query, the second the key."""
    return [((0,), (1,))]


def swap() -> Pairing:
    """Return the pairing of SimCLR and BYOL: each of two views is the query once."""
    return [((0,), (1,)), ((1,), (0,))]


def crops(keys: int, total: int) -> Pairing:
    """Return multi-crop's pairing: the first `keys` views are the keys of every other view."""
    if not 0 < keys < total:
        raise ValueError(f"multi-crop needs more views than its {keys} key views, got {total}")
    return [((query,), (key,)) for key in range(keys) for query in range(total) if query != key]


def many_keys(count: int) -> Pairing:
    """Return JCL's pairing: one query and `count` keys treated together."""
    _at_least_one(count)
    return [((0,), tuple(range(1, count + 1)))]


def each_key(count: int) -> Pairing:
    """Return the pairing of JCL's vanilla baseline (supplement 2): a loss for each key."""
    _at_least_one(count)
    return [((0,), (key,)) for key in range(1, count + 1)]


def halves(views: int) -> Pairing:
    """Return MSBReg's first form: the centroids of two halves of the views, both ways."""
    _even(views)
    first, second = tuple(range(views // 2)), tuple(range(views // 2, views))
    return [(first, second), (second, first)]


def leave_one_out(views: int) -> Pairing:
    """Return MSBReg's second form: each view against the centroid of all others."""
    _even(views)
    return [
        ((view,), tuple(other for other in range(views) if other != view)) for view in range(views)
    ]


def everything(views: int) -> Pairing:
    """Return MSBReg's third form: the centroid of all views against the target's centroid."""
    _even(views)
    return [(tuple(range(views)), tuple(range(views)))]


def repeated(views: int) -> Pairing:
    """Return batch repetition (Hoffer et al., CVPR 2020): V/2 independent pairs, no centroid."""
    _even(views)
    return [
        ((a,), (b,))
        for first in range(0, views, 2)
        for a, b in ((first, first + 1), (first + 1, first))
    ]


def views_of(pairing: Pairing) -> int:
    """Return the number of views that a pairing needs."""
    return 1 + max(view for queries, keys in pairing for view in queries + keys)


def _at_least_one(count: int) -> None:
    if count < 1:
        raise ValueError(f"a query needs at least one key, got {count}")


def _even(views: int) -> None:
    if views < 2 or views % 2:
        raise ValueError(f"the number of views must be even and at least 2, got {views}")
