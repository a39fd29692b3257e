"""What there is, by name, with one line each."""

import difflib
from collections.abc import Callable


def methods() -> dict[str, str]:
    """The presets, by the first line of their docstrings."""
    from antipode.papers import PRESETS  # noqa: PLC0415

    return {name: (preset.__doc__ or "").split("\n")[0] for name, preset in PRESETS.items()}


def recipes() -> dict[str, str]:
    """Data set and method of every recipe."""
    from antipode.recipe.resolve import list_recipes  # noqa: PLC0415

    return {name: "{1} on {0}".format(*name.split(".", 1)) for name in list_recipes()}


def datasets() -> dict[str, str]:
    """Data sets and ways to bring one's own."""
    from antipode.data.sources.catalog import summaries  # noqa: PLC0415

    return summaries()


def protocols() -> dict[str, str]:
    """Evaluations."""
    from antipode.evaluation.protocol import PROTOCOLS  # noqa: PLC0415

    return {name: one.about for name, one in PROTOCOLS.items()}


def analyses() -> dict[str, str]:
    """Analyses."""
    from antipode.analysis.catalog import ANALYSES  # noqa: PLC0415

    return {name: one.about for name, one in ANALYSES.items()}


def items() -> dict[str, str]:
    """Tables and figures of the papers."""
    from antipode.reproduction.catalog import ITEMS  # noqa: PLC0415

    return {name: item.question for name, item in ITEMS.items()}


def backbones() -> dict[str, str]:
    """Networks by name."""
    from antipode.nets.backbone import RESNETS  # noqa: PLC0415

    rows = {
        name: f"{sum(shape.layers)} blocks, width {shape.width}" for name, shape in RESNETS.items()
    }
    return rows | {"timm:NAME": "any model of timm (extra `timm`)"}


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": methods,
    "recipes": recipes,
    "datasets": datasets,
    "protocols": protocols,
    "analyses": analyses,
    "items": items,
    "backbones": backbones,
}


def listing(what: str) -> dict[str, str]:
    """Names and lines of one kind."""
    if what not in KINDS:
        near = difflib.get_close_matches(what, KINDS, 1, 0.7)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"there is no list of {what!r}{hint}: choose from {', '.join(KINDS)}")
    return KINDS[what]()


def list_recipes() -> list[str]:
    """Names of recipes."""
    return list(recipes())


def list_datasets() -> list[str]:
    """Names of data sets."""
    return list(datasets())


def list_protocols() -> list[str]:
    """Names of evaluations."""
    return list(protocols())
