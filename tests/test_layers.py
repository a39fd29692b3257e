"""Imports point one way: types, dist, rng <- core <- nets <- methods <- engine <- api <- cli; data stands beside."""

import ast
from pathlib import Path

import pytest

import antipode

ROOT = Path(antipode.__file__).parent
MAY = {
    "types": set(),
    "files": set(),
    "dist": set(),
    "rng": set(),
    "core": {"types", "dist", "rng", "core"},
    "nets": {"types", "dist", "rng", "core", "nets"},
    "methods": {"types", "dist", "rng", "core", "nets", "methods"},
    "functional": {"types", "dist", "rng", "core"},
    "data": {"types", "files", "dist", "rng", "data"},
    "optim": set(),
    "schedule": set(),
    "recipes": {"recipes", "schedule", "core", "methods", "nets", "data"},
    "engine": {
        *("types", "files", "dist", "rng", "core", "nets", "methods", "data", "optim", "schedule", "recipes", "engine"),
        "__version__",
    },
    "evaluation": {
        *("types", "files", "dist", "rng", "core", "nets", "functional", "data", "optim", "schedule", "evaluation"),
    },
    "analysis": {"types", "files", "rng", "core", "methods", "functional", "data", "engine", "evaluation", "analysis"},
    "reporting": {"files", "evaluation", "data", "engine", "methods", "reporting"},
    "api": {
        *("types", "files", "dist", "data", "nets", "engine", "evaluation", "analysis", "reporting", "methods"),
        "functional",
    },
    "reproduction": {
        *("api", "files", "rng", "analysis", "data", "engine", "evaluation", "nets", "recipes", "reproduction"),
    },
    "listing": {"analysis", "reproduction", "methods", "engine", "data", "evaluation", "nets"},
    "cli": {"api", "files", "engine", "data", "listing", "reproduction", "__version__"},
    "__main__": {"cli"},
}


def imported(path):
    """The parts of the package that a file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("antipode."))


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    assert part in MAY, f"{part} is a new part: say here what it may import"
    assert set(imported(path)) <= MAY[part]


def test_only_dist_talks_to_other_processes():
    for path in ROOT.rglob("*.py"):
        if path.name != "dist.py":
            assert "torch.distributed" not in path.read_text(), path


def code_lines(path):
    """Lines that hold code: no blanks, comments or docstrings."""
    tree, lines = ast.parse(path.read_text()), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            continue
        if isinstance(node, ast.stmt):
            lines.update(range(node.lineno, node.end_lineno + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len({line for line in lines if path.read_text().splitlines()[line - 1].strip(" ")})


def test_core_stays_small():
    """When a change needs more, it is probably a method, not a part."""
    assert sum(code_lines(path) for path in (ROOT / "core").glob("*.py")) < 650
