"""Which view meets which: plain lists of (query views, key views). The number of views is one more than the largest."""

Pairing = list[tuple[tuple[int, ...], tuple[int, ...]]]


def one_way() -> Pairing:
    """MoCo: the first view asks, the second answers."""
    return [((0,), (1,))]


def swap() -> Pairing:
    """SimCLR, BYOL: both views ask."""
    return [((0,), (1,)), ((1,), (0,))]


def crops(keys: int, total: int) -> Pairing:
    """Multi-crop: the first `keys` views answer every other view."""
    if not 0 < keys < total:
        raise ValueError(f"multi-crop needs more views than the {keys} that answer, got {total}")
    return [((query,), (key,)) for key in range(keys) for query in range(total) if query != key]


def many_keys(count: int) -> Pairing:
    """JCL: one query, `count` keys treated together."""
    _at_least_one(count)
    return [((0,), tuple(range(1, count + 1)))]


def each_key(count: int) -> Pairing:
    """JCL's vanilla baseline (supplement 2): one query, `count` keys, an ordinary loss for each."""
    _at_least_one(count)
    return [((0,), (key,)) for key in range(1, count + 1)]


def halves(views: int) -> Pairing:
    """MSBReg, primary form: the centroid of one half of the views meets that of the other half, both ways."""
    _even(views)
    first, second = tuple(range(views // 2)), tuple(range(views // 2, views))
    return [(first, second), (second, first)]


def leave_one_out(views: int) -> Pairing:
    """MSBReg, second form: each view meets the centroid of all others."""
    _even(views)
    return [
        ((view,), tuple(other for other in range(views) if other != view)) for view in range(views)
    ]


def everything(views: int) -> Pairing:
    """MSBReg, third form: the centroid of all views meets the target's centroid of the same views."""
    _even(views)
    return [(tuple(range(views)), tuple(range(views)))]


def repeated(views: int) -> Pairing:
    """Batch repetition (Hoffer et al., CVPR 2020): V/2 independent pairs of each image, no centroid."""
    _even(views)
    return [
        ((a,), (b,))
        for first in range(0, views, 2)
        for a, b in ((first, first + 1), (first + 1, first))
    ]


def views_of(pairing: Pairing) -> int:
    """How many views a pairing needs."""
    return 1 + max(view for queries, keys in pairing for view in queries + keys)


def _at_least_one(count: int) -> None:
    if count < 1:
        raise ValueError(f"a query needs at least one key, got {count}")


def _even(views: int) -> None:
    if views < 2 or views % 2:
        raise ValueError(f"the number of views must be even and at least 2, got {views}")
