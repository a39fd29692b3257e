"""Values that follow from others: what the method is built like decides its views and its parameter groups.

A method is built on torch's meta device, which holds no numbers: that costs nothing, and every preset checks its
arguments by itself. torch is imported only when a recipe is resolved, not by the module.
"""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from antipode.recipe.layer import NETWORK, OWN_STEM, VIEWS, Layer
from antipode.recipe.papers import BANK_OWN
from antipode.recipe.schema import GROUPS, Group

if TYPE_CHECKING:
    from antipode.core.learner import Learner

OWN = (
    "timm:",
    "python:",
)  # networks with a stem of their own: timm's, and modules handed over in Python


def sketch(method: str, arguments: Mapping[str, Any]) -> "Learner":
    """The learner of a method without its numbers; ValueError where the arguments do not fit."""
    import torch  # noqa: PLC0415

    from antipode.papers import PRESETS  # noqa: PLC0415

    net = torch.nn.Flatten()
    net.width = 512  # type: ignore[assignment]
    with torch.device("meta"):
        return PRESETS[method](net, **arguments)


def policy_arguments(policy: str) -> dict[str, inspect.Parameter]:
    """The keyword arguments of a policy: its signature is the schema."""
    from antipode.data.views.policy import POLICIES  # noqa: PLC0415

    signature = inspect.signature(POLICIES[policy], eval_str=True)
    return {name: p for name, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY}


def follow(values: Layer, user: Layer, asked: Layer) -> Layer:
    """All values, with those that follow from others; `user` were given, `asked` are the latest of them."""
    arguments = {
        key[7:]: value
        for key, (value, _) in values.items()
        if key.startswith("method.") and key[7:] != "name"
    }
    learner = sketch(values["method.name"][0], arguments)
    groups = list(learner.groups())
    values = _views(_stem(values, user), user, learner.views)
    _refuse_groups(values, user, groups)
    if "predictor" in groups:
        copies = {
            f"optim.predictor.{key}": (values[f"optim.network.{key}"][0], NETWORK)
            for key in Group.model_fields
        }
        values = copies | values
    if "bank" in groups:
        values = _bank(values, user, asked)
    absent = {f"optim.{name}" for name in GROUPS if name not in groups}
    values = {key: value for key, value in values.items() if key.rpartition(".")[0] not in absent}
    for name in groups:
        values |= _idle(values, user, f"optim.{name}")
    return values


def _stem(values: Layer, user: Layer) -> Layer:
    name = str(values["backbone.name"][0])
    if not name.startswith(OWN) or values["backbone.stem"][0] is None:
        return values
    if "backbone.stem" in user:
        raise ValueError(
            f"backbone.stem={values['backbone.stem'][0]} is for our ResNets; {name} has its own"
        )
    return values | {"backbone.stem": (None, OWN_STEM)}


def _views(values: Layer, user: Layer, count: int) -> Layer:
    """As many views as the method takes, where the policy can make any number."""
    for argument, wanted in (("views", count), ("crops", count - 2)):
        key = f"views.{argument}"
        if key in values and key not in user:
            values = values | {key: (wanted, VIEWS)}
    return values


def _refuse_groups(values: Layer, user: Layer, groups: list[str]) -> None:
    for key in user:
        section, _, rest = key.partition(".")
        name = rest.partition(".")[0]
        if section == "optim" and name not in groups:
            method = values["method.name"][0]
            raise ValueError(
                f"{key} would have no effect: method {method} trains {' and '.join(groups)}, no {name}"
            )


def _bank(values: Layer, user: Layer, asked: Layer) -> Layer:
    """The bank's rate, momentum and decay are arguments of the method and keys of its optimiser: one decides both."""
    for key, (argument, own) in BANK_OWN.items():
        ours, theirs = f"optim.bank.{key}", f"method.{argument}"
        latest = asked if ours in asked or theirs in asked else user
        if ours in latest and theirs in latest:
            if values[ours][0] != values[theirs][0]:
                raise ValueError(
                    f"{ours}={values[ours][0]} and {theirs}={values[theirs][0]} are one number: give one"
                )
            continue
        first, second = (ours, theirs) if ours in latest else (theirs, ours)
        value = values[first] if values[first][0] is not None else (own, "AdCo (AdCo: README)")
        values = values | {first: value, second: (value[0], first)}
    return values


def _idle(values: Layer, user: Layer, group: str) -> Layer:
    """Nothing of a step schedule, a cosine or LARS where another schedule or optimiser was asked for."""
    layer: Layer = {}
    for key, kind, belongs, nothing in (
        ("at", "schedule", "steps", ()),
        ("floor", "schedule", "cosine", 0.0),
        ("variant", "name", "lars", "after"),
    ):
        name = f"{group}.{key}"
        if (
            values[f"{group}.{kind}"][0] != belongs
            and name not in user
            and values[name][0] not in (nothing, [])
        ):
            layer[name] = (nothing, "default")
    return layer
