"""Find wrong names on the command line before torch is imported, which takes seconds.

The names of methods, protocols and data sets are read from the source files, without importing
them. Only what is certainly wrong raises an error here, with the sentence that the command itself
would end with. Everything else is checked again by the command.
"""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from antipode.names import brief, closest, printable, unknown
from antipode.paths import expanded, no_folder
from antipode.wording import option

HOME = Path(__file__).parent
UNTRAINED = ("random:", "torchvision:", "file:")  # networks that no run trained
PREFIXES = ("folder:", "webdataset:", "hf:", "packed:")  # of data sets
WEIGHTS = "backbone.safetensors"
CLASSIFIER = "model.json"  # in a folder that `antipode finetune` has written


def check_recipe(recipe: str | None, method: str | None) -> None:
    """Raise ValueError for the name of an unknown recipe or method."""
    if method is not None and method not in methods():
        raise unknown("method", method, methods())
    if recipe is not None and (recipe.startswith(PREFIXES) or recipe in data_sets()):
        raise ValueError(
            f"{brief(recipe)} is a data set and not a recipe: use {option('data', recipe)}"
        )
    if recipe is None or "/" in recipe or recipe.endswith(".json") or Path(recipe).exists():
        return
    data, dot, name = recipe.partition(".")
    known = list(methods())
    # recipes such as cifar10.dcl-paper are listed beside their methods
    is_variant = any(name.startswith(f"{one}-") for one in known)
    if recipe in known or (dot and data in data_sets() and (name in known or is_variant)):
        return
    match = closest(recipe, [*(f"{data}.{name}" for data in data_sets() for name in known), *known])
    hint = f", did you mean {match!r}?" if match else ""
    raise ValueError(
        f"there is no recipe {brief(recipe)}{hint} (a recipe is dataset.method, a method or a file)"
    )


def check_data(data: str | None) -> None:
    """Raise FileNotFoundError for a folder of images that does not exist."""
    prefix, _, rest = (data or "").partition(":")
    path = expanded(rest)
    if prefix == "folder" and rest and not path.is_dir():
        raise FileNotFoundError(printable(no_folder(path)))


def check_run(run: str) -> None:
    """Raise FileNotFoundError if a command needs a trained backbone, and a folder has none."""
    path = Path(run)
    if not run.startswith(UNTRAINED) and not (path / WEIGHTS).exists():
        raise FileNotFoundError(not_finished(path))


def not_finished(path: Path) -> str:
    """Return the sentence about a folder that holds no trained backbone."""
    if (path / CLASSIFIER).exists():
        return (
            f"{path} holds a classifier and not a run: antipode predict uses it, and torchvision "
            f"or timm load its model.safetensors as it is"
        )
    if (path / "recipe.json").exists():
        return (
            f"{path} holds no finished run: its training has not ended, so there is no {WEIGHTS} "
            "yet; the command that started it resumes it"
        )
    if path.parts[:1] and path.parts[0].startswith("timm:"):
        return (
            f"{path} needs a prefix that says which weights: random:{path} is untrained, and "
            f"file:PATH@{path} is a checkpoint"
        )
    if below := runs_below(path):
        return f"{path} holds no finished run{below}"
    hint = _near_kind(path) or _near(path)
    reason = f"there is no {WEIGHTS}" if path.exists() else f"there is no such folder{hint}"
    others = (
        "networks that no run trained are random:NAME, torchvision:NAME and file:PATH@NAME, where "
        "NAME may be timm:NAME"
    )
    others = f" ({others})" if reason.endswith("?") else f"; {others}"
    return f"{path} holds no finished run: {reason}{others}"


def _near(path: Path) -> str:
    """Return a hint with the run beside a path that has the most similar name."""
    runs = (file.parent.name for file in path.parent.glob(f"*/{WEIGHTS}"))
    match = closest(path.name, runs)
    return f", did you mean {path.parent / match}?" if match else ""


def _near_kind(path: Path) -> str:
    """Return a hint with the network that a text such as `torchvsion:resnet18` may mean."""
    for place, part in enumerate(path.parts):
        kind, colon, rest = part.partition(":")
        match = closest(f"{kind}{colon}", UNTRAINED) if colon else None
        if match:
            return f", did you mean {match}{'/'.join([rest, *path.parts[place + 1 :]])}?"
    return ""


def runs_below(path: Path) -> str:
    """Return a remark on the runs below a folder, empty if there are none."""
    files = [*path.glob("*/recipe.json"), *path.glob("runs/*/recipe.json")]
    if not files:
        return ""
    number = "one run lies" if len(files) == 1 else f"{len(files)} runs lie"
    return f", but {number} below it: give the folder of a run, such as {min(files).parent}"


def no_run(path: Path) -> str:
    """Return the sentence about a folder that holds neither a run nor scores."""
    return f"there is no run in {path}{runs_below(path)}"


def check_runs(runs: Sequence[str]) -> None:
    """Raise FileNotFoundError for a folder that does not exist."""
    absent = [run for run in runs if not run.startswith(UNTRAINED) and not Path(run).exists()]
    if absent:
        raise FileNotFoundError(no_run(Path(absent[0])))


def check_protocols(names: Sequence[str] | None) -> None:
    """Raise ValueError for the name of an unknown protocol."""
    for name in names or ():
        if name not in protocols():
            raise unknown("protocol", name, protocols())


@cache
def methods() -> tuple[str, ...]:
    """Return the names of all methods, in the order of `antipode list methods`."""
    return tuple(_of_papers("METHODS", "method.py"))


@cache
def protocols() -> tuple[str, ...]:
    """Return the names of all protocols."""
    general = _keys(HOME / "evaluation" / "protocol.py", "GENERAL")
    return (*general, *_of_papers("PROTOCOLS", "protocols.py"))


@cache
def data_sets() -> tuple[str, ...]:
    """Return the names of the data sets that have recipes."""
    return tuple(_keys(HOME / "recipe" / "datasets.py", "DATASETS"))


def _of_papers(kind: str, file: str) -> Iterator[str]:
    """Yield the keys of the dictionaries called `kind` in all rooms of `papers`."""
    for room in sorted((HOME / "papers").iterdir(), key=lambda path: path.stem):
        path = room / file if room.is_dir() else room
        if path.suffix == ".py" and path.exists() and room.stem != "__init__":
            yield from _keys(path, kind)


def _keys(path: Path, name: str) -> Iterator[str]:
    """Yield the keys of a dictionary that a source file assigns to `name` at its top level."""
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        value = getattr(node, "value", None)
        if named and isinstance(value, ast.Dict):
            for key in value.keys:
                if isinstance(key, ast.Constant):
                    yield str(key.value)
