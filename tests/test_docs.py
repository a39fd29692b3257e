"""Tests that the documents agree with the code."""

import importlib.util
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from PIL import Image

import antipode
from antipode.cli import app
from antipode.core.describe import COLUMNS, describe
from antipode.data.sources.catalog import SETS
from antipode.listing import list_protocols
from antipode.papers import arguments, build, methods
from tests.snippets import imported
from tests.toys import fewer

ROOT = Path(__file__).parents[1]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}  # another test worker uses the other core
PAGES = {"mocov1": "moco", "mocov2": "moco", "simo": "eqco", "dclw": "dcl"}
NAVIGATION = (ROOT / "mkdocs.yml").read_text()
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
    """Return the antipode commands of a document, in code blocks and in text, as lists of words.

    `antipode COMMAND --help`, which stands for any command, is left out.
    """
    text = path.read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    rest = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += [" ".join(span.split()) for span in re.findall(r"`(antipode [^`]+)`", rest)]
    found = [shlex.split(line, comments=True) for line in lines if line.startswith("antipode ")]
    return [words for words in found if words[1].isalpha() and words[1].islower()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_documents_exist_with_their_flags(path):
    known = typer.main.get_command(app).commands
    for _, name, *words in commands(path):
        assert name in known, name
        flags = {flag for option in known[name].params for flag in option.opts}
        flags |= {flag for option in known[name].params for flag in option.secondary_opts}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= flags | {"--help"}, (name, given - flags)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_paths_of_the_source_in_documents_exist(path):
    for name in re.findall(
        r"`((?:src|tests|examples|docs|benchmarks)/[\w/.-]+\.\w+)`", path.read_text()
    ):
        assert "NAME" in name or (ROOT / name).exists(), name


def test_the_command_line_page_lists_every_command():
    page = (ROOT / "docs" / "command-line.md").read_text()
    for name in typer.main.get_command(app).commands:
        assert f"| `antipode {name} " in page, name


def test_the_reference_shows_every_public_name():
    page = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    for name in antipode.__all__:
        place = f"antipode.runs.run.{name}" if name == "Run" else f"antipode.{name}"
        assert f"::: {place}\n" in page, name
    table = (ROOT / "docs" / "reference" / "losses.md").read_text()
    for name in antipode.functional.__all__:
        assert f"`{name}`" in table, name


def test_every_method_page_can_show_sources_of_its_settings():
    """The site adds them from the recipes; each setting has a source that names its origin."""
    settings = runpy.run_path(str(ROOT / "docs_site" / "settings.py"))
    pages = {PAGES.get(method, method) for method in methods()} - {"custom"}
    for page in pages:
        assert settings["PLACE"] in (ROOT / "docs" / "methods" / f"{page}.md").read_text(), page
    assert settings["SHARED"].keys() == set(PAGES.values())
    text = settings["section"]("byol")
    assert "`optim.network.lr=0.3`" in text and "BYOL (byol: configs/byol.py)" in text


def test_flags_of_examples_in_documents_exist():
    for path in DOCUMENTS:
        text = " ".join(path.read_text().split())
        for name, words in re.findall(r"python (examples/\w+\.py)([^`]*)", text):
            source = (ROOT / name).read_text()
            for flag in re.findall(r"--[\w-]+", words):
                assert f'"{flag}"' in source, f"{path.name}: {name} {flag}"


def links(page):
    """Return the pages that a page of the documentation links to, as paths under docs/."""
    home = ROOT / "docs" / page
    targets = re.findall(r"\]\(([^)#:]+\.md)[^)]*\)", home.read_text())
    found = [(home.parent / target).resolve() for target in targets]
    return {
        str(path.relative_to(ROOT / "docs")) for path in found if path.is_relative_to(ROOT / "docs")
    }


def test_each_of_ten_questions_is_answered_within_two_clicks():
    rows = [
        row for row in table_rows((ROOT / "docs" / "questions.md").read_text()) if "?]" in row[0]
    ]
    assert len(rows) == 10
    tabs = re.findall(r"^  - [^:]+:(?: (\S+\.md)|\n      - (\S+\.md)\n)", NAVIGATION, re.MULTILINE)
    first_clicks = links("index.md") | {page for tab in tabs for page in tab if page}
    for question, path in rows:
        clicks = [target.partition("#")[0] for target in re.findall(r"\]\((.*?)\)", path)]
        assert len(clicks) <= 2 and clicks[0] in first_clicks, question
        assert all(page in links(clicks[0]) for page in clicks[1:]), question


def test_the_home_page_answers_the_same_questions():
    home = table_rows((ROOT / "docs" / "index.md").read_text())
    assert len([row for row in home if row[0].endswith("?")]) == 10


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
def test_examples_run(example, tmp_path, monkeypatch):
    wanted = imported(example.read_text()) & set(OPTIONAL)
    missing = sorted(name for name in wanted if importlib.util.find_spec(name) is None)
    if missing:
        pytest.skip(f"{example.name} needs {', '.join(missing)}: pip install '.[examples]'")
    if example.stem == "own_loop":  # a process of its own would import torch for seconds
        monkeypatch.setattr(sys, "argv", [str(example), "--quick"])
        monkeypatch.setitem(SETS, "shapes", fewer("shapes", 500, 100))
        runpy.run_path(str(example), run_name="__main__")
        return
    words = {"demo": ["--out", tmp_path / "demo"]}
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
    nbclient = pytest.importorskip(
        "nbclient", reason="nbclient is missing: pip install '.[examples]'"
    )
    nbformat = pytest.importorskip(
        "nbformat", reason="nbformat is missing: pip install '.[examples]'"
    )
    pytest.importorskip("ipykernel", reason="ipykernel is missing: pip install '.[examples]'")
    monkeypatch.setenv("ANTIPODE_NOTEBOOK_IMAGES", "8")
    monkeypatch.setenv("ANTIPODE_NOTEBOOK_EPOCHS", "1")
    notebook = nbformat.read(ROOT / "examples" / "folder_to_report.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=tmp_path)
    assert (tmp_path / "runs" / "photos" / "report.html").exists()


def test_every_example_is_listed_in_the_guides_and_in_the_navigation():
    guides = (ROOT / "docs" / "guides" / "index.md").read_text()
    for path in [*EXAMPLES, *(ROOT / "examples").glob("*.ipynb")]:
        assert f"examples/{path.name}" in guides, path.name
        assert f"examples/{path.stem}.md" in NAVIGATION, path.name


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


def test_the_batch_sizes_and_negatives_on_choose_a_method_are_measured():
    results = table_rows((ROOT / "benchmarks" / "RESULTS.md").read_text())
    numbers = [[cell.split(" ")[0] for cell in row] for row in results]
    page = (ROOT / "docs" / "choose.md").read_text()
    sizes = page[page.index("## By batch size") : page.index("## By the number of negatives")]
    for batch, simclr, dcl, gain in table_rows(sizes)[1:]:
        assert any(
            [row[0], row[1], row[3], row[5]] == [batch, simclr, dcl, gain]
            for row in numbers
            if len(row) == 8
        ), batch
    negatives = page[page.index("## By the number of negatives") : page.index("## Accuracy")]
    for count, *values in table_rows(negatives)[1:]:
        measured = next(row for row in numbers if row[0] == count and row[-1] == "lr")
        assert [v for v in values if v != "not measured"] == [
            v for v in (measured[1], measured[5]) if v
        ]


def test_the_readme_counts_protocols_and_the_home_page_methods():
    readme = (ROOT / "README.md").read_text()
    linear = [
        name for name in list_protocols() if name.startswith("linear") and name != "linear-fast"
    ]
    assert len(linear) == 12 and "twelve linear protocols" in " ".join(readme.split())
    published = set(methods()) - {"custom"}
    assert f"{len(published)} published methods" in (ROOT / "docs" / "index.md").read_text()
