"""Settings for images that are smaller than ImageNet's, or fewer.

These values were tuned once, on CIFAR-10 and on `shapes`, and the recipes of all papers use them.
Settings that concern only one method belong to the room of its paper.
"""

from antipode.recipe.layer import Layer, RecipeContext, optimiser, stack, warm_up, with_source

QUEUE = 65536  # the usual number of keys in a queue, and of vectors in a bank

TINY = "ours: with it DCL reaches 63 to 72 % kNN on shapes (benchmarks/RESULTS.md)"
SMALL = "ours: with it SimCLR reaches 84.3 % kNN on CIFAR-10 in 100 epochs (benchmarks/RESULTS.md)"
HELD_OUT = "ours: chosen on held-out CIFAR-10 training images (benchmarks/RESULTS.md)"
OWN_FOLDS = "ours: best on training folds of CIFAR-10 (benchmarks/RESULTS.md)"
# with half of this learning rate, methods without negatives learn slowly
LIGHTLY = "lightly's CIFAR-10 benchmark: .06 at batch size 128"


def keys_for(images: int) -> int:
    """Return the size of a queue: a power of two, and at most an eighth of the number of images."""
    return int(min(QUEUE, 2 ** max(4, (images // 8).bit_length() - 1)))


def few_keys(context: RecipeContext) -> int | None:
    """Return the size of a queue or bank for few images, or None if the usual size applies.

    It is not smaller than the batch of the context: each step pushes a whole batch of keys.
    """
    if context.images is None or context.images > QUEUE:
        return None
    batch = 2 ** (context.batch - 1).bit_length() if context.batch else 0
    return max(keys_for(context.images), batch)


def small_rate(source: str = SMALL, lr: float = 0.06) -> Layer:
    """Return the optimiser for small images."""
    return optimiser(source, "sgd", lr, weight_decay=5e-4)


def without_negatives() -> Layer:
    """Return the optimiser for small images and methods without negatives."""
    return small_rate(LIGHTLY, 0.12)


def smaller_images(
    context: RecipeContext, rate: Layer | None = None, crops: str | None = OWN_FOLDS
) -> Layer:
    """Return optimiser and views for tiny or small images, or an empty layer at ImageNet's scale.

    Args:
        context: the data set and the length of the run.
        rate: the optimiser for small images; None uses `small_rate`.
        crops: source text for crops that cover .2 to 1 of an image, as in MoCo and SimSiam; None
            keeps SimCLR's .08 to 1.
    """
    if context.dataset.scale == "large":
        return {}
    views = context.dataset.views
    if context.dataset.scale == "tiny":
        # 4 epochs are about a tenth of the usual 50
        tiny = optimiser(TINY, "sgd", 0.2, weight_decay=1e-4)
        return stack(tiny, warm_up(context, "ours", 4), views)
    larger_crops = with_source(crops, {"views.scale": (0.2, 1.0)}) if crops and views else {}
    return stack(small_rate() if rate is None else rate, views, larger_crops)
