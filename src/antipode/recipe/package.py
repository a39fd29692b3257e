"""The numbers of every recipe, each with its source: layers for data sets and methods, and a few pairs of their own."""

from antipode.recipe.datasets import LISTED, known
from antipode.recipe.layer import Layer, RecipeContext, stack
from antipode.recipe.pairs import LENGTHS, PAIRS, VARIANTS, multi_crop
from antipode.recipe.papers import BANK, PAPERS
from antipode.recipe.small import few_images, small


def names() -> list[str]:
    """Every recipe that is listed; any other data set goes with any method too."""
    plain = [f"{data}.{method}" for data in LISTED for method in PAPERS if method != "custom"]
    return plain + list(VARIANTS)


def length(data: str, method: str) -> Layer:
    """Network, size, epochs and batch: what does not depend on other values."""
    return stack(known(data).layer, LENGTHS.get((data, method), {}))


def layers(case: RecipeContext, variant: str | None = None) -> Layer:
    """Every value that a data set, a method and the variant of their recipe decide."""
    place, pair = known(case.data), PAIRS.get((case.data, case.method))
    return stack(
        length(case.data, case.method),
        PAPERS[case.method](case),
        few_images(case) if place.scale == "large" else small(case, place),
        pair(case) if pair else {},
        VARIANTS[variant].layer(case) if variant else {},
        multi_crop(case),
        BANK,
    )
