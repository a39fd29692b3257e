"""The scripts of benchmarks/ fit the package, although only a GPU runs most of them."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))
NAMES = {path.stem: path for path in SCRIPTS}


def defined(path):
    """Return the names that a script defines at its top level, without running it."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names


def used(tree):
    """Yield (module, name) for what a script takes from the package and from other scripts."""
    scripts = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            scripts |= {a.asname or a.name: a.name for a in node.names if a.name in NAMES}
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in scripts:
                yield scripts[node.value.id], node.attr


def missing(path):
    """Return what a script uses of the package or of another script and what is not there."""
    absent = []
    for module, name in used(ast.parse(path.read_text())):
        ours = module.split(".")[0] == "antipode"
        if (module in NAMES and name not in defined(NAMES[module])) or (
            ours and not has(module, name)
        ):
            absent.append(f"{module}.{name}")
    return absent


def has(module, name):
    if hasattr(import_module(module), name):
        return True
    try:
        import_module(f"{module}.{name}")
    except ModuleNotFoundError as error:
        return error.name != f"{module}.{name}"  # Triton is not everywhere
    return True


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_script_imports_is_there(path):
    """A function that was renamed in src/ or in another script is found here, not on the GPU."""
    assert not missing(path)


def test_a_name_that_is_gone_is_found(tmp_path):
    script = tmp_path / "script.py"
    lines = ["import overhead", "from overhead import gone", "from antipode import dist, lost"]
    script.write_text("\n".join([*lines, "overhead.nothing()"]))
    assert missing(script) == ["overhead.gone", "antipode.lost", "overhead.nothing"]
