"""Where a run comes from: its recipe against the default, the method as a row of choices, how to do it again."""

import json
import shlex
from functools import cache
from pathlib import PurePath
from typing import Any

import torch

from antipode.core.describe import COLUMNS, describe
from antipode.data.sources.catalog import SETS
from antipode.evaluation.protocol import PROTOCOLS
from antipode.papers import build
from antipode.recipe.resolve import list_recipes, resolve
from antipode.reporting.gather import Record

AXES = {
    "views": "views of each image in a step",
    "pairing": "which view meets which",
    "twin": "what makes the keys",
    "positives": "how several positives become one number",
    "negatives": "what repels",
    "coupling": "how attraction and repulsion become a loss",
    "margin": "EqCo's rule for any number of negatives",
    "BN groups": "images that share batch-norm statistics",
    "extra": "what else the method has",
}

BETWEEN = ("cka", "neighbours")  # analyses that one run alone does not have
EVALUATE = "antipode evaluate runs/again"


def choices(one: Record) -> dict[str, str] | None:
    """The method by axis, read off a learner that is built without numbers; None where it cannot be built."""
    arguments = {
        key[7:]: value
        for key, value in one.recipe.items()
        if key.startswith("method.") and key[7:] != "name"
    }
    return _choices(one.method, json.dumps(arguments))


@cache
def _choices(method: str, arguments: str) -> dict[str, str] | None:
    try:
        with torch.device("meta"):
            found = describe(build(method, "resnet10-slim", **json.loads(arguments)))
    except (
        ValueError,
        TypeError,
        RuntimeError,
    ):  # a recipe of another version, or a method of one's own
        return None
    return {axis: found[axis] for axis in COLUMNS}


def recipe_rows(one: Record) -> list[list[Any]]:
    """Key, value, source and, where it differs, the default of the same data set and method, in a list of its own."""
    usual = _default(one.method, str(one.value("data.name")), one.sources.get("method.name", ""))
    rows = []
    for key, value in one.recipe.items():
        differs = usual is not None and json.dumps(usual.get(key)) != json.dumps(value)
        rows.append(
            [key, value, one.sources.get(key, ""), *([[(usual or {}).get(key)]] if differs else [])]
        )
    return rows


@cache
def _default(method: str, data: str, recipe: str) -> dict[str, Any] | None:
    """The package's own values; None for a method or data set it does not know."""
    try:
        known = resolve(recipe) if recipe in list_recipes() else resolve(method=method, data=data)
    except (ValueError, OSError):
        return None
    content: dict[str, Any] = json.loads(json.dumps(known.leaves()))
    return content


def commands(one: Record) -> list[str]:
    """How to do it again, from the recipe that the page itself carries."""
    commit = str(one.env.get("commit") or "")
    first = [f"git checkout {commit.removesuffix('+')}"] if commit else []
    return [
        *first,
        _trained(one),
        *_scored(one),
        *_analysed(one),
        "antipode report runs/again",
    ]


def _trained(one: Record) -> str:
    own = [
        key for key in ("data", "backbone") if str(one.value(f"{key}.name")).startswith("python:")
    ]
    if own:  # which no command can name
        given = ", ".join(f"{key}=..." for key in own)
        return f'# in Python: antipode.pretrain("recipe.json", {given}, out="runs/again")'
    return "antipode pretrain recipe.json --out runs/again"


def _scored(one: Record) -> list[str]:
    """The commands that give the scores again: one for each data set and seed."""
    groups: dict[tuple[str, Any], list[str]] = {}
    for name, score in one.scores.items():
        protocol, _, place = name.partition("@")
        usual = PROTOCOLS[protocol].data if protocol in PROTOCOLS else None
        if not place and usual and isinstance(score, dict) and score.get("data") != usual:
            place = str(
                score.get("data")
            )  # without a word the protocol would go to a data set of its own
        seed = score.get("seed") if isinstance(score, dict) else None
        groups.setdefault((place, None if seed == one.value("train.seed") else seed), []).append(
            protocol
        )
    found = []
    for (place, seed), protocols in groups.items():
        words = "".join(f" --protocol {name}" for name in protocols)
        words += f" --data {shlex.quote(place)}" if place else ""
        words += "" if seed is None else f" --seed {seed}"
        kind = place or str(one.value("data.name"))
        own = kind.startswith("python:") or (":" not in kind and kind not in SETS)
        named = (
            f"# in Python, with a {kind.removeprefix('python:')} as data=: {', '.join(protocols)}"
        )
        found.append(named if own else f"{EVALUATE}{words}")
    return found


def _analysed(one: Record) -> list[str]:
    """The commands that give the analyses again: one for each seed."""
    groups: dict[Any, list[str]] = {}
    for name, content in one.analysis.items():
        if name not in BETWEEN:
            settings = content.get("settings") if isinstance(content, dict) else None
            groups.setdefault((settings or {}).get("seed") or 0, []).append(name)
    if str(one.value("data.name")).startswith("python:"):
        return [f"# in Python, with data=: {', '.join(names)}" for names in groups.values()]
    return [
        f"antipode analyse runs/again{''.join(f' --what {shlex.quote(name)}' for name in names)}"
        + (f" --seed {seed}" if seed else "")
        for seed, names in groups.items()
    ]


def started(one: Record) -> str | None:
    """The command that started the run, without the place of the program."""
    words = one.env.get("command")
    if not isinstance(words, list) or not words:
        return None
    program, *rest = map(str, words)
    name = PurePath(program).name
    call = (
        ["antipode"]
        if name in ("antipode", "__main__.py")
        else ["python", program]
        if name.endswith(".py")
        else [name]
    )
    return shlex.join([*call, *rest])


def environment(one: Record) -> list[list[str]]:
    """Versions and machine, as far as the run wrote them down."""
    return [
        [key, str(value)]
        for key, value in one.env.items()
        if key != "command" and value is not None
    ]


def sentence(one: Record, images: int | None = None) -> str:
    """What the run is, in one sentence."""
    if not one.recipe:
        return "A network that no run here has trained; the folder holds scores and no recipe."
    epochs, done = one.value("train.epochs"), one.epochs_done
    many = f"{images:,} images of " if images else ""
    length = f"{epochs} epochs" if one.finished else f"{done} of {epochs} epochs so far"
    return (
        f"{one.method} taught {one.value('backbone.name')} on {many}{one.value('data.name')} without a label: "
        f"{length}, {one.value('train.batch')} images a step, seed {one.value('train.seed')}."
    )
