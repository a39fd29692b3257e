"""Imports point one way: types, dist, rng <- core <- nets <- papers <- recipe <- training <- api <- cli."""

import ast
from pathlib import Path

import pytest

import antipode

ROOT = Path(antipode.__file__).parent
LOW = {"types", "files", "dist", "rng"}
MAY = {
    "types": set(),
    "files": set(),
    "dist": set(),
    "rng": set(),
    "optim": set(),
    "schedule": set(),
    "core": {*LOW, "core", "nets", "papers"},
    "nets": {*LOW, "core", "nets"},
    "functional": {*LOW, "core"},
    "data": {*LOW, "data"},
    "recipe": {*LOW, "recipe", "schedule", "core", "papers", "nets", "data"},
    "papers": {*LOW, "core", "nets", "recipe", "reproduction", "papers"},
    "runs": {*LOW, "core", "nets", "papers", "data", "recipe", "training", "runs", "__version__"},
    "training": {
        *LOW,
        "core",
        "nets",
        "papers",
        "data",
        "optim",
        "schedule",
        "recipe",
        "runs",
        "training",
    },
    "evaluation": {*LOW, "core", "nets", "functional", "data", "optim", "schedule", "evaluation"},
    "analysis": {
        *LOW,
        "core",
        "papers",
        "functional",
        "data",
        "training",
        "runs",
        "recipe",
        "evaluation",
        "analysis",
    },
    "reporting": {
        *LOW,
        "core",
        "evaluation",
        "data",
        "recipe",
        "runs",
        "training",
        "papers",
        "reporting",
    },
    "api": {
        *(
            *LOW,
            "data",
            "nets",
            "recipe",
            "runs",
            "training",
            "evaluation",
            "analysis",
            "reporting",
            "papers",
        ),
        "functional",
    },
    "reproduction": {
        *(
            *LOW,
            "api",
            "analysis",
            "data",
            "recipe",
            "runs",
            "training",
            "evaluation",
            "nets",
            "papers",
        ),
        "reproduction",
    },
    "listing": {"analysis", "reproduction", "papers", "recipe", "data", "evaluation", "nets"},
    "cli": {"api", "files", "recipe", "runs", "data", "listing", "reproduction", "__version__"},
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


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
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
