"""The layout of the package: imports point one way, and a paper is known in its own room only."""

import ast
import re
from pathlib import Path

import pytest

import antipode
from antipode.papers import list_methods

ROOT = Path(antipode.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LOW = {
    *("types", "files", "names", "dist", "rng", "optim", "schedule", "devices"),
    *("json_text", "limits", "paths", "wording", "early", "threads"),
}
CORE = {*LOW, "core", "measures", "nets"}
# what the modules of a part may import; parts of one line may import each other, but no module may
# import itself in a circle (test_no_module_imports_itself_in_a_circle)
MAY = {
    **dict.fromkeys(LOW, LOW),
    "core": {*LOW, "core", "measures"},
    "measures": {"core"},
    "nets": CORE,
    "functional": {*LOW, "core", "measures"},
    "data": {*LOW, "data", "papers"},
    "recipe": {*CORE, "data", "papers", "recipe"},
    "papers": {
        *(*CORE, "functional", "data", "recipe", "papers"),
        *("evaluation", "analysis", "reproduction"),
    },
    "evaluation": {*CORE, "functional", "data", "papers", "runs", "training", "evaluation"},
    "runs": {*CORE, "data", "papers", "recipe", "training", "evaluation", "runs", "__version__"},
    "training": {*CORE, "data", "papers", "recipe", "runs", "evaluation", "training"},
    "finetuning": {*CORE, "data", "runs", "training", "evaluation", "finetuning"},
    "analysis": {
        *(*CORE, "functional", "data", "papers", "recipe"),
        *("runs", "training", "evaluation", "analysis"),
    },
    "reporting": {*CORE, "data", "papers", "recipe", "runs", "training", "evaluation", "reporting"},
    "launch": {*LOW, "exits", "data", "recipe", "runs", "training", "evaluation", "launch"},
    "reproduction": {
        *(*CORE, "data", "papers", "recipe", "runs", "training"),
        *("evaluation", "analysis", "launch", "reporting", "reproduction"),
    },
    "sweeps": {
        *(*LOW, "data", "recipe", "runs", "training", "evaluation", "reporting"),
        *("launch", "reproduction", "sweeps"),
    },
    "api": {
        *(*LOW, "data", "recipe", "runs", "training", "evaluation"),
        *("analysis", "launch", "reporting"),
    },
    "listing": {
        "names",
        "analysis",
        "reproduction",
        "papers",
        "recipe",
        "data",
        "evaluation",
        "nets",
    },
    "exits": set(),
    "cli": {"early", "exits", "files", "names", "paths", "wording"},
    "__main__": {"cli", "threads"},
}


def name_of(path):
    """The dotted name of a module, without the package's own."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def imported(path, anywhere=True):
    """The modules of the package that a file imports, at its top or anywhere, by dotted name."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if anywhere else tree.body
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("antipode."):
                inner = name.removeprefix("antipode.")
                yield inner if inner in MODULES else inner.rpartition(".")[0] or inner


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_one_way(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    assert part in MAY, f"{part} is a new part: say here what it may import"
    assert {name.split(".")[0] for name in imported(path)} <= MAY[part]


def test_no_module_imports_itself_in_a_circle():
    graph = {name: set(imported(path, anywhere=False)) for name, path in MODULES.items()}
    done, open_ = set(), []

    def visit(name):
        if name in done or name not in graph:
            return
        assert name not in open_, " -> ".join([*open_[open_.index(name) :], name])
        open_.append(name)
        for other in sorted(graph[name]):
            visit(other)
        open_.pop()
        done.add(name)

    for name in graph:
        if name:
            visit(name)


def test_a_paper_is_known_in_its_own_room_only():
    """Other parts learn of papers from the registry: no room is imported outside of papers."""
    rooms = {name.split(".")[1] for name in MODULES if name.startswith("papers.")}
    for name, path in MODULES.items():
        if not name.startswith("papers"):
            known = {one for one in imported(path) if one.startswith("papers.")}
            assert not known, (name, known)
    assert len(rooms) > 10


def strings(path):
    """All string constants of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_no_list_of_methods_outside_of_papers():
    """No string outside of papers and functional is a method's name or a list of them."""
    methods = set(list_methods())
    for name, path in MODULES.items():
        if name.split(".")[0] in ("papers", "functional"):
            continue
        for text in strings(path):
            words = text.split()
            assert not words or not set(words) <= methods, (name, text)


def test_only_the_room_of_a_paper_names_it():
    """As the shell would find it: grep -rlw jcl src/antipode --include='*.py'."""
    for name, path in MODULES.items():
        if re.search(r"\bjcl\b", path.read_text()):
            assert name.startswith("papers.jcl") or name == "functional", name


def test_modules_are_imported_at_the_top():
    """A module of the package that is imported inside a function has its reason beside it."""
    inside = []
    for name, path in MODULES.items():
        text = path.read_text().splitlines()
        top = {node.lineno for node in ast.parse(path.read_text()).body}
        for node in ast.walk(ast.parse(path.read_text())):
            own = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("antipode")
            if own and node.lineno not in top and "TYPE_CHECKING" not in "".join(text[:20]):
                assert "(" in text[node.lineno - 1].partition("noqa")[2], (name, node.lineno)
                inside.append((name, node.lineno))
    assert len(inside) <= 10, inside


def test_only_dist_talks_to_other_processes():
    for path in FILES:
        if path.name != "dist.py":
            assert "torch.distributed" not in path.read_text(), path


def test_the_public_functions_are_thin():
    assert len((ROOT / "api.py").read_text().splitlines()) <= 200


def test_no_line_is_longer_than_100_columns():
    """The linter does not count comments for tools at the end of a line, and this does."""
    for folder in ("src", "tests", "benchmarks", "examples"):
        for path in sorted((ROOT.parents[1] / folder).rglob("*.py")):
            lines = path.read_text().splitlines()
            long = [number for number, line in enumerate(lines, 1) if len(line) > 100]
            assert not long, (path, long)
