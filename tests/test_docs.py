"""Tests that the documents agree with the code."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from PIL import Image

from antipode.cli import app
from antipode.core.describe import COLUMNS, describe
from antipode.papers import arguments, build, methods
from tests.snippets import imported

ROOT = Path(__file__).parents[1]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # another test worker uses the other core
PAGES = {"mocov1": "moco", "mocov2": "moco", "simo": "eqco", "dclw": "dcl"}
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "RESULTS.md",
]


def run_script(path, *words):
    """Run a Python file in a process of its own."""
    return subprocess.run(
        [sys.executable, path, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=ONE_THREAD,
    )


def test_the_table_of_the_design_page_is_printed_from_the_presets():
    rows = ["| method | " + " | ".join(COLUMNS) + " |"]
    for method in methods():
        choices = describe(build(method, "resnet10-slim"))
        rows.append(
            "| " + " | ".join([f"`{method}`", *(choices[column] for column in COLUMNS)]) + " |"
        )
    page = (ROOT / "docs" / "design.md").read_text()
    assert all(row in page for row in rows), "\n".join(rows)


@pytest.mark.parametrize("method", methods())
def test_every_method_has_a_page_that_names_its_arguments(method):
    page = (ROOT / "docs" / "methods" / f"{PAGES.get(method, method)}.md").read_text()
    for name in arguments(method):
        assert f"`{name}`" in page, f"{name} of {method}"


@pytest.mark.parametrize("method", methods())
def test_the_readme_lists_every_method(method):
    assert f"`{method}`" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


def commands(path):
    """Return the antipode commands in the code blocks of a document, as lists of words."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("antipode ")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_documents_exist_with_their_flags(path):
    known = typer.main.get_command(app).commands
    for _, name, *words in commands(path):
        flags = {flag for option in known[name].params for flag in option.opts}
        flags |= {flag for option in known[name].params for flag in option.secondary_opts}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= flags, (name, given - flags)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_paths_of_the_source_in_documents_exist(path):
    for name in re.findall(
        r"`((?:src|tests|examples|docs|benchmarks)/[\w/.-]+\.\w+)`", path.read_text()
    ):
        assert "NAME" in name or (ROOT / name).exists(), name


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
QUICK_EXAMPLES = {"own_loop"}
OPTIONAL = ("accelerate", "datasets", "lightning", "transformers")


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            path, id=path.name, marks=[pytest.mark.slow] * (path.stem not in QUICK_EXAMPLES)
        )
        for path in EXAMPLES
    ],
)
def test_examples_run(example, tmp_path):
    wanted = imported(example.read_text()) & set(OPTIONAL)
    missing = sorted(name for name in wanted if importlib.util.find_spec(name) is None)
    if missing:
        pytest.skip(f"{example.name} needs packages that are not installed: {', '.join(missing)}")
    words = {"demo": ["--out", tmp_path / "demo"], "own_loop": ["--data", "digits"]}
    process = run_script(example, "--quick", *words.get(example.stem, []))
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
def test_the_code_of_the_python_page_runs(tmp_path):
    """All blocks in one process, with a folder of images beside it."""
    page = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for place in range(16):
        folder = tmp_path / "photos" / "ab"[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (place * 9, 99, 0)).save(folder / f"{place}.png")
    script = tmp_path / "page.py"
    # one process may start others for images, which import this file again
    lines = [f"    {line}" for block in blocks for line in block.splitlines()]
    script.write_text("if __name__ == '__main__':\n" + "\n".join(lines) + "\n")
    process = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=ONE_THREAD,
    )
    assert process.returncode == 0, process.stderr
    assert "Run('" in process.stdout and "knn20" in process.stdout
    assert len(process.stdout.splitlines()) < 5, "short representations"


@pytest.mark.slow
def test_the_notebook_runs_from_a_folder_to_a_report(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    monkeypatch.setenv("ANTIPODE_NOTEBOOK_IMAGES", "8")
    monkeypatch.setenv("ANTIPODE_NOTEBOOK_EPOCHS", "1")
    notebook = nbformat.read(ROOT / "examples" / "folder_to_report.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=tmp_path)
    assert (tmp_path / "runs" / "photos" / "report.html").exists()


def test_every_example_is_listed_in_the_guides_and_in_the_navigation():
    guides = (ROOT / "docs" / "guides" / "index.md").read_text()
    navigation = (ROOT / "mkdocs.yml").read_text()
    for path in [*EXAMPLES, *(ROOT / "examples").glob("*.ipynb")]:
        assert f"examples/{path.name}" in guides, path.name
        assert f"examples/{path.stem}.md" in navigation, path.name


@pytest.mark.slow
def test_a_loop_of_ones_own_takes_any_method_policy_and_backbone():
    words = "--method msbreg --policy byol --backbone resnet10-slimx2 --batch 32 --quick".split()
    process = run_script(ROOT / "examples" / "own_loop.py", *words)
    assert process.returncode == 0 and "msbreg: " in process.stdout, process.stderr


def test_the_results_page_says_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import tables

    for page in tables.PAGES:
        assert tables.updated(page) == page.read_text(), f"run benchmarks/tables.py: {page.name}"


def test_a_run_counts_as_done_only_while_its_recipe_has_the_same_values(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import accuracy

    entry = accuracy.ENTRIES["mocov2"]
    line = {"run": "mocov2", "values": accuracy.values_of(entry)}
    assert accuracy.finished("mocov2", entry, [line])
    assert not accuracy.finished("mocov2-200", entry, [line])

    older = line["values"] | {"method.tau": 0.1}
    assert accuracy.changed(older, line["values"]) == {"method.tau": 0.1}
    assert not accuracy.finished("mocov2", entry, [line | {"values": older}])

    # an argument that was added later
    without_tau = {key: value for key, value in line["values"].items() if key != "method.tau"}
    assert accuracy.finished("mocov2", entry, [line | {"values": without_tau}])
    given_tau = replace(entry, values={"method.tau": 0.2})
    assert not accuracy.finished("mocov2", given_tau, [line | {"values": without_tau}])

    other_tau = replace(entry, values={"method.tau": 0.1})
    assert accuracy.finished("mocov2", other_tau, [line | {"values": older}])


def test_the_speed_in_the_readme_is_the_last_one_measured():
    lines = (ROOT / "benchmarks" / "results" / "throughput.jsonl").read_text().splitlines()
    *_, (session, speed) = (
        (session, row["ours"]["images_per_second"])
        for session in map(json.loads, lines)
        for row in session["rows"]
        if row["recipe"] == "cifar10.simclr" and session["lightly"]
    )
    page = " ".join((ROOT / "README.md").read_text().split())
    assert f"{speed:,.0f} images/s" in page
    assert all(f"{entry['images_per_second']:,.0f}" in page for entry in session["lightly"])


def table_rows(text):
    """Return the rows of all tables of a document, as lists of cells."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    ("page", "start", "end"),
    [
        ("choose.md", "## Accuracy", "## Time"),
        ("start/cifar10.md", "## What to expect", "BYOL reaches"),
    ],
)
def test_accuracies_in_the_documents_are_those_of_the_readme(page, start, end):
    measured = {row[0]: row[1:] for row in table_rows((ROOT / "README.md").read_text())}
    text = (ROOT / "docs" / page).read_text()
    for name, *values in table_rows(text[text.index(start) : text.index(end)])[1:]:
        found = [value.split(" ")[0] for value in measured.get(name, [])]
        assert values == found, f"{name}: docs/{page} has {values}, the README {found}"


def test_the_speeds_on_choose_a_method_are_measured():
    results = table_rows((ROOT / "benchmarks" / "RESULTS.md").read_text())
    pairs = {(row[1], row[4]) for row in results if row[0].startswith("cifar10.") and len(row) == 6}
    page = (ROOT / "docs" / "choose.md").read_text()
    for _, speed, memory, minutes in table_rows(page[page.index("## Time") :])[1:]:
        assert (speed, memory) in pairs, (speed, memory)
        expected = 100 * 50_000 / float(speed.replace(",", "")) / 60
        assert minutes == f"{expected:.1f} min"
