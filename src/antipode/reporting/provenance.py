"""Where a run comes from: its recipe, the components of its method, and commands that repeat it."""

import json
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import PurePath
from typing import Any

import torch

from antipode.core.describe import COLUMNS, describe
from antipode.core.traits import RandomStart, random_start
from antipode.data.sources.catalog import SETS
from antipode.evaluation.protocol import protocols as known_protocols
from antipode.json_text import number
from antipode.papers import build
from antipode.recipe.recipe import ABOUT
from antipode.reporting.summary import epochs_done, near_path
from antipode.runs.run import Run

AXES = {
    "views": "views of each image per step",
    "pairing": "which views are compared",
    "twin": "the network that computes the keys",
    "positives": "how several positives are combined",
    "negatives": "where the negatives come from",
    "coupling": "how attraction and repulsion form the loss",
    "margin": "EqCo's correction for the number of negatives",
    "BN groups": "images that share batch-norm statistics",
    "extra": "further components",
}

BETWEEN = ("cka", "neighbours")  # analyses that compare several runs
EVALUATE = "antipode evaluate runs/again"


def choices(run: Run) -> dict[str, str] | None:
    """Return the components of the method by axis, or None if the method cannot be built.

    They are read from a learner that is built on the meta device. It has a real backbone, because
    some components are about batch norm.
    """
    found = _sketch(run.method, _arguments(run))
    return None if found is None else found[0]


def stored_vectors(run: Run) -> RandomStart | None:
    """Return the random vectors that a queue, bank or memory of the run started with.

    Returns None if the method stores none, or if it cannot be built.
    """
    found = _sketch(run.method, _arguments(run))
    return None if found is None else found[1]


def _arguments(run: Run) -> str:
    """Return the arguments of the method as JSON."""
    arguments = {
        key.removeprefix("method."): value
        for key, value in run.values.items()
        if key.startswith("method.") and key != "method.name"
    }
    return json.dumps(arguments)


@cache
def _sketch(method: str, arguments: str) -> tuple[dict[str, str], RandomStart | None] | None:
    """Return what is known of a method from building it on the meta device, or None."""
    try:
        with torch.device("meta"):
            learner = build(method, "resnet10-slim", **json.loads(arguments))
            row = describe(learner)
            start = random_start(learner)
    except (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError):
        # the recipe was written by another version, or the method is the user's own
        return None
    return {axis: row[axis] for axis in COLUMNS}, start


def recipe_rows(run: Run) -> list[list[Any]]:
    """Return [key, value, source] of every value of the recipe.

    If the user gave the value, the row has a fourth entry: a list with the value that it replaced.
    """
    rows = []
    for key, value in run.values.items():
        row = [key, value, run.sources.get(key, "")]
        if key in run.replaced:
            row.append([run.replaced[key]])
        rows.append(row)
    return rows


def recipe_about(run: Run) -> dict[str, Any]:
    """Return the keys of recipe.json beside its sections and sources, such as its format.

    A recipe of format 1 has none of them, so the values that the user replaced are unknown.
    """
    content = run.folder.read_object("recipe.json")
    return {key: content[key] for key in ABOUT if key in content and key != "sources"}


def commands(run: Run) -> list[str]:
    """Return the commands that repeat a run from the recipe that the page contains."""
    commit = str(run.environment.get("commit") or "")
    checkout = [f"git checkout {shlex.quote(commit.removesuffix('+'))}"] if commit else []
    return [
        *checkout,
        _training_command(run, PurePath("recipe.json"), PurePath("runs/again")),
        *_evaluation_commands(run),
        *_analysis_commands(run),
        "antipode report runs/again",
    ]


def resuming_command(run: Run) -> str:
    """Return the command that trains a run to its end."""
    folder = near_path(run)
    return _training_command(run, folder / "recipe.json", folder)


def _training_command(run: Run, recipe: PurePath, out: PurePath) -> str:
    """Return the command that trains a recipe file."""
    python_objects = [
        key for key in ("data", "backbone") if str(run.value(f"{key}.name")).startswith("python:")
    ]
    if python_objects:  # a command cannot name them
        given = ", ".join(f"{key}=..." for key in python_objects)
        return f'# in Python: antipode.pretrain("{recipe}", {given}, out="{out}")'
    return shlex.join(["antipode", "pretrain", str(recipe), "--out", str(out)])


def _evaluation_commands(run: Run) -> list[str]:
    """Return the commands that repeat the scores: one per data set and seed."""
    groups: dict[tuple[str, Any], list[str]] = {}
    for name, score in run.shown_scores.items():
        protocol, _, data = name.partition("@")
        known = known_protocols().get(protocol)
        usual = known.data if known else None
        if not data and usual and score.get("data") != usual:
            # without --data, the protocol would use its own data set
            data = str(score.get("data"))
        seed = score.get("seed")
        seed = None if seed == run.value("train.seed") else seed
        groups.setdefault((data, seed), []).append(protocol)
    return [_evaluation(run, data, seed, names) for (data, seed), names in groups.items()]


def _evaluation(run: Run, data: str, seed: Any, protocols: Sequence[str]) -> str:
    """Return the command for protocols on a data set, which is the run's own if `data` is empty."""
    place = data or str(run.value("data.name"))
    if place.startswith("python:") or (":" not in place and place not in SETS):
        kind = place.removeprefix("python:")
        return f"# in Python, with a {kind} as data=: {', '.join(protocols)}"
    words = "".join(f" --protocol {shlex.quote(name)}" for name in protocols)
    words += f" --data {shlex.quote(data)}" if data else ""
    words += "" if seed is None else f" --seed {seed}"
    return f"{EVALUATE}{words}"


def _analysis_commands(run: Run) -> list[str]:
    """Return the commands that repeat the analyses: one per seed."""
    groups: dict[Any, list[str]] = {}
    for name, content in run.analysis.items():
        if name not in BETWEEN:
            settings = content.get("settings") if isinstance(content, dict) else None
            seed = settings.get("seed") if isinstance(settings, dict) else None
            groups.setdefault(seed if seed and number(seed) else 0, []).append(name)
    if str(run.value("data.name")).startswith("python:"):
        return [f"# in Python, with data=: {', '.join(names)}" for names in groups.values()]
    return [
        f"antipode analyse runs/again{''.join(f' --what {shlex.quote(name)}' for name in names)}"
        + (f" --seed {seed}" if seed else "")
        for seed, names in groups.items()
    ]


def start_command(run: Run) -> str | None:
    """Return the command that started the run, without the folder of the program."""
    words = run.environment.get("command")
    if not isinstance(words, list) or not words:
        return None
    program, *rest = map(str, words)
    name = PurePath(program).name
    if name in ("antipode", "__main__.py"):
        return shlex.join(["antipode", *rest])
    return shlex.join([*(["python", program] if name.endswith(".py") else [name]), *rest])


def environment(run: Run) -> list[list[str]]:
    """Return [key, value] of the versions and hardware that the run recorded.

    Pages are shared with others, so the folder of the run's user is left out.
    """
    return [
        [key, str(value)]
        for key, value in run.environment.items()
        if key not in ("command", "directory") and value is not None
    ]


def sentence(run: Run, images: int | None = None) -> str:
    """Return one sentence that describes the run."""
    if run.is_untrained:
        return f"An untrained network, {run.network_name}: its weights are random."
    if not run.values:
        name = f", {run.network_name}" if run.network_name else ""
        return f"A network that no run here has trained{name}: there are scores and no recipe."
    epochs = run.value("train.epochs")
    done = epochs_done(run)
    count = f"{images:,} images of " if images else ""
    whole = "1 epoch" if epochs == 1 else f"{epochs} epochs"
    length = whole if run.finished else f"{done} of {whole} so far"
    return (
        f"{run.value('backbone.name')} pretrained with {run.method} on {count}"
        f"{run.value('data.name')} without labels: {length}, batch size "
        f"{run.value('train.batch')}, seed {run.value('train.seed')}."
    )
