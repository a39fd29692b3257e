"""Values that are computed from other values.

The method determines the number of views and the parameter groups of the optimiser.
"""

from antipode.core.learner import Learner
from antipode.nets.timm_net import stated_size
from antipode.recipe.layer import (
    IMAGE_SIZE,
    NETWORK,
    OWN_STEM,
    VIEWS,
    Default,
    Derived,
    Layer,
)
from antipode.recipe.schema import GROUPS, Group

OWN_STEMS = ("timm:", "python:")  # networks that have their own stem
# A method may have arguments for the optimiser of a parameter group, such as `bank_lr` for the
# group `bank`. Keys are settings of the optimiser, values are the ends of the arguments' names.
GROUP_ARGUMENTS = {"lr": "lr", "momentum": "momentum", "weight_decay": "decay"}


def derive(values: Layer, user: Layer, asked: Layer, learner: Learner) -> Layer:
    """Return all values, including those that are computed from others.

    Args:
        values: all other values, converted.
        user: the values that the user gave.
        asked: those of them that were given on top of a recipe, which take precedence.
        learner: the learner of the method, built on the meta device.
    """
    groups = list(learner.groups())
    values = _view_size(_stem(values, user), user)
    values = _views(values, user, learner.views)
    _check_groups(values, user, groups)
    if "predictor" in groups:
        copied = {
            f"optim.predictor.{key}": (values[f"optim.network.{key}"][0], NETWORK)
            for key in Group.model_fields
        }
        values = copied | values
    for name in groups:
        values = _same_number(values, user, asked, name, learner)
    absent = {f"optim.{name}" for name in GROUPS if name not in groups}
    values = {key: value for key, value in values.items() if key.rpartition(".")[0] not in absent}
    for name in groups:
        values |= _without_effect(values, user, f"optim.{name}")
    return values


def _stem(values: Layer, user: Layer) -> Layer:
    """Set the stem to None for networks that have their own."""
    name = str(values["backbone.name"][0])
    stem = values["backbone.stem"][0]
    if not name.startswith(OWN_STEMS) or stem is None:
        return values
    if "backbone.stem" in user:
        raise ValueError(f"backbone.stem={stem} applies only to our ResNets; {name} has its own")
    return values | {"backbone.stem": (None, OWN_STEM)}


def _view_size(values: Layer, user: Layer) -> Layer:
    """Set the view size to the image size that the name of a network of timm states."""
    name = str(values["backbone.name"][0])
    stated = stated_size(name)
    size = values["views.size"][0]
    if stated is None or stated == size:
        return values
    if "views.size" in user:
        raise ValueError(
            f"views.size={size} does not fit {name}, which takes images of {stated} px: leave out "
            "one of the two"
        )
    return values | {"views.size": (stated, IMAGE_SIZE)}


def _views(values: Layer, user: Layer, count: int) -> Layer:
    """Set the number of views to that of the method, if the policy has an argument for it."""
    for argument, number in (("views", count), ("crops", count - 2)):
        key = f"views.{argument}"
        if key in values and key not in user:
            values = values | {key: (number, VIEWS)}
    return values


def _check_groups(values: Layer, user: Layer, groups: list[str]) -> None:
    """Raise ValueError for settings of a parameter group that the method does not have."""
    for key in user:
        section, _, rest = key.partition(".")
        name = rest.partition(".")[0]
        if section == "optim" and name not in groups:
            method = values["method.name"][0]
            raise ValueError(
                f"{key} would have no effect: method {method} has no parameter group {name}, only "
                f"{' and '.join(groups)}"
            )


def _same_number(values: Layer, user: Layer, asked: Layer, group: str, learner: Learner) -> Layer:
    """Keep the optimiser settings of a group equal to the method's arguments for it.

    For AdCo's bank, for example, `method.bank_lr` and `optim.bank.lr` are the same number.
    """
    for key, argument in GROUP_ARGUMENTS.items():
        setting = f"optim.{group}.{key}"
        counterpart = f"method.{group}_{argument}"
        if counterpart not in values:
            continue
        latest = asked if setting in asked or counterpart in asked else user
        if setting in latest and counterpart in latest:
            _check_equal(values, setting, counterpart)
            continue
        if setting in latest:
            first, second = setting, counterpart
        else:
            first, second = counterpart, setting
        value = values[first]
        if value[0] is None:
            value = learner.options[group][key], Default(f"default of {counterpart}")
        values = values | {first: value, second: (value[0], Derived(first, first))}
    return values


def _check_equal(values: Layer, setting: str, counterpart: str) -> None:
    """Raise ValueError if two names of the same number have different values."""
    if values[setting][0] != values[counterpart][0]:
        raise ValueError(
            f"{setting}={values[setting][0]} and {counterpart}={values[counterpart][0]} are two "
            "names of the same number: give only one of them"
        )


def _without_effect(values: Layer, user: Layer, group: str) -> Layer:
    """Return neutral values for settings that the chosen schedule or optimiser does not use."""
    layer: Layer = {}
    for key, chooser, choice, neutral in (
        ("at", "schedule", "steps", ()),
        ("floor", "schedule", "cosine", 0.0),
        ("variant", "name", "lars", "after"),
    ):
        name = f"{group}.{key}"
        unused = values[f"{group}.{chooser}"][0] != choice
        if unused and name not in user and values[name][0] not in (neutral, []):
            layer[name] = (neutral, Default("default"))
    return layer
