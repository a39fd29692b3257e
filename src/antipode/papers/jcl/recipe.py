"""What JCL is trained with."""

from antipode.papers.moco import few_images, imagenet_v2, smaller
from antipode.recipe.layer import (
    Derived,
    Layer,
    RecipeContext,
    method,
    optimiser,
    run_length,
    stack,
)

RELEASE = "JCL (JCL: main_moco.py)"
ABLATION = "JCL supplement, table 1"
LENGTHS = {"imagenet100": run_length("JCL supplement 4", batch=128, epochs=100)}


def recipe(context: RecipeContext) -> Layer:
    """MoCo v2's settings; lambda reaches its full value in the last epoch."""
    closed_form = context.arguments.get("form", "gaussian") == "gaussian"
    full = Derived(f"lambda is full in the last epoch; {RELEASE}", "train.epochs")
    ramp = method(RELEASE, strength=2.0) | method(full, ramp=context.epochs)
    return stack(
        imagenet_v2(context),
        optimiser(RELEASE, "sgd", 0.03, weight_decay=1e-4, per="epoch"),
        method(RELEASE, keys=4),  # the script makes 4 keys, the paper says 5
        ramp if closed_form else {},
        smaller(context),
        few_images(context),
        _imagenet100(closed_form) if context.data == "imagenet100" else {},
    )


def _imagenet100(closed_form: bool) -> Layer:
    """The ablations: .1 at batch size 128, which is .2 at 256, with five keys and lambda 4."""
    layer = optimiser("JCL supplement 4: .1 at 128", "sgd", 0.2, weight_decay=1e-4, per="epoch")
    layer |= method(ABLATION, keys=5)
    return layer | (method(ABLATION, strength=4.0) if closed_form else {})
