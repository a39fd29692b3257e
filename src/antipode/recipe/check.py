"""Checks of a recipe that need no data."""

from antipode.core.learner import Learner
from antipode.data.sources.catalog import PREFIXES
from antipode.data.sources.catalog import unknown as unknown_data
from antipode.data.views.views import views
from antipode.limits import NUMBERS
from antipode.names import unknown
from antipode.nets.backbone import RESNETS, SUPERVISED
from antipode.nets.timm_net import parse
from antipode.recipe.datasets import DATASETS
from antipode.recipe.derived import OWN_STEMS
from antipode.recipe.recipe import Recipe
from antipode.recipe.schema import Backbone


def check_data(name: str) -> None:
    """Raise ValueError for the name of an unknown data set."""
    prefix, _, rest = name.partition(":")
    if name not in DATASETS and not (rest and prefix in (*PREFIXES, "python")):
        raise ValueError(unknown_data(name))


def check_size(method: str, learner: Learner) -> None:
    """Raise ValueError if heads, queue, bank and memory would not fit into any usual machine.

    The learner was built on the meta device and holds nothing yet. Each of its sizes is within its
    own limit, but their products may not be.
    """
    tensors = (*learner.parameters(), *learner.buffers())
    count = sum(tensor.numel() for tensor in tensors)
    if count > NUMBERS:
        largest = max(tensors, key=lambda tensor: tensor.numel())
        shape = " x ".join(f"{side:,}" for side in largest.shape)
        raise ValueError(
            f"method {method} with these arguments stores {count:,} numbers without its backbone "
            f"({shape} of them in one tensor), but at most {NUMBERS:,} (64 GiB) are allowed"
        )


def check_recipe(recipe: Recipe, needed: int) -> None:
    """Raise ValueError for values that do not fit each other, where no data are needed to tell.

    `needed` is the number of views that the method takes.
    """
    _check_backbone(recipe.backbone)
    policy = recipe.views.policy
    made = views(policy, size=recipe.views.size, **recipe.views.arguments).count
    if made != needed:
        raise ValueError(
            f"method {recipe.method.name} takes {needed} views of each image, "
            f"but policy {policy} makes {made}"
        )
    if recipe.train.batch % recipe.train.accumulate:
        raise ValueError(
            f"train.accumulate={recipe.train.accumulate} does not divide the batch size of "
            f"{recipe.train.batch}"
        )
    for name, group in recipe.optim.items():
        if group.nesterov and (group.name == "adamw" or not group.momentum):
            raise ValueError(
                f"optim.{name}.nesterov=true needs sgd or lars with a momentum above 0"
            )
        try:
            group.scheduled(recipe.train.epochs)
        except ValueError as error:
            raise ValueError(f"optim.{name}: {error}") from None


def _check_backbone(backbone: Backbone) -> None:
    check_backbone_name(backbone.name)
    if backbone.weights == "torchvision" and backbone.name not in SUPERVISED:
        raise ValueError(
            f"backbone.weights=torchvision, but torchvision has no weights for {backbone.name}"
        )


def check_backbone_name(name: str) -> None:
    """Raise ValueError for the name of an unknown backbone."""
    has_own_stem = name.startswith(OWN_STEMS) and not name.endswith(":")
    if name not in RESNETS and not has_own_stem:
        raise unknown("backbone", name, [*RESNETS, "timm:NAME"])
    if name.startswith("timm:"):
        parse(name)
