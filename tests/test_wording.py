"""Messages name flags on the command line and arguments in Python."""

import ast
import re
from pathlib import Path

import pytest

import antipode
from antipode import wording
from antipode.devices import pick_device
from antipode.wording import command, option, overrides, same_call

ROOT = Path(antipode.__file__).parent
# pages and command lines that are printed as such, and sources of papers
COMMANDS = {"cli.py", "exits.py", "wording.py", "__init__.py", "__main__.py"}
ROOMS = ("reporting/", "papers/", "reproduction/", "launch/", "sweeps/")
# whole commands of antipode, and flags of other programs
OTHERS = (
    "antipode ",
    "tar --concatenate",
    "rev-parse",
    "--always",
    "--dirty",
    "--abbrev",
    "--show-toplevel",
)


def test_an_option_is_a_flag_or_an_argument():
    pairs = {
        option("out"): "out",
        option("overwrite", True): "overwrite=True",
        option("resume", False): "resume=False",
        option("device", "cpu"): 'device="cpu"',
        overrides({"views.size": 32, "backbone.stem": "small"}): (
            'overrides={"views.size": 32, "backbone.stem": "small"}'
        ),
        same_call(): "the same call",
    }
    assert all(python == expected for python, expected in pairs.items())
    with wording.command_line():
        assert option("out") == "--out"
        assert option("overwrite", True) == "--overwrite"
        assert option("resume", False) == "--no-resume"
        assert option("device", "cpu") == "--device cpu"
        assert overrides({"a.b": 32, "c.d": "x"}) == "--set a.b=32 --set c.d=x"
        assert same_call() == "the same command"
    assert option("out") == "out"


def test_names_with_spaces_are_quoted_for_a_shell():
    with wording.command_line():
        assert option("data", "folder:my photos") == "--data 'folder:my photos'"
    assert command("pack", "folder:my photos", size=9) == (
        "antipode pack 'folder:my photos' --size 9"
    )


def test_an_error_in_python_names_the_argument():
    with pytest.raises(ValueError, match='no MPS device here; use device="cpu"'):
        pick_device("mps")


def test_no_other_file_writes_a_flag_into_a_message():
    """Docstrings and comments may name flags; messages ask `wording`."""
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if path.name in COMMANDS or name.startswith(ROOMS):
            continue
        tree = ast.parse(path.read_text())
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if id(node) in docs or any(word in text for word in OTHERS):
                    continue
                if re.search(r"(^|\s)--[a-z]", text):
                    wrong.append((name, text))
    assert not wrong
