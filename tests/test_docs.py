"""What the documents say is what the code does."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from antipode.core.describe import COLUMNS, describe
from antipode.papers import PRESETS, arguments, build

ROOT = Path(__file__).parents[1]
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}  # the other worker has the other core
PAGES = {"mocov1": "moco", "mocov2": "moco", "simo": "eqco", "dclw": "dcl"}


def test_the_table_of_the_design_page_is_printed_from_the_presets():
    rows = ["| method | " + " | ".join(COLUMNS) + " |"]
    for method in PRESETS:
        choices = describe(build(method, "resnet10-slim"))
        rows.append(
            "| " + " | ".join([f"`{method}`", *(choices[column] for column in COLUMNS)]) + " |"
        )
    page = (ROOT / "docs" / "design.md").read_text()
    assert all(row in page for row in rows), "\n".join(rows)


@pytest.mark.parametrize("method", PRESETS)
def test_every_method_has_a_page_that_names_its_arguments(method):
    page = (ROOT / "docs" / "methods" / f"{PAGES.get(method, method)}.md").read_text()
    for name in arguments(method):
        assert f"`{name}`" in page, f"{name} of {method}"


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name
)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(example):
    done = subprocess.run(
        [sys.executable, example, "--quick"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=ALONE,
    )
    assert done.returncode == 0, done.stderr


def test_a_loop_of_ones_own_takes_any_method_policy_and_backbone():
    words = "--method msbreg --policy byol --backbone resnet10-slimx2 --batch 32 --quick".split()
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "own_loop.py", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=ALONE,
    )
    assert done.returncode == 0 and "msbreg: " in done.stdout, done.stderr


def test_the_results_page_says_what_was_measured():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "tables.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_run_counts_as_done_only_while_its_recipe_has_the_same_values(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import accuracy

    entry = accuracy.ENTRIES["mocov2"]
    line = {"run": "mocov2", "values": accuracy.values_of(entry)}
    assert accuracy.finished("mocov2", entry, [line]) and not accuracy.finished(
        "mocov2-200", entry, [line]
    )
    older = line["values"] | {"method.tau": 0.1}
    assert accuracy.changed(older, line["values"]) == {"method.tau": 0.1}
    assert not accuracy.finished("mocov2", entry, [line | {"values": older}])
    unknown = {key: value for key, value in line["values"].items() if key != "method.tau"}
    assert accuracy.finished(
        "mocov2", entry, [line | {"values": unknown}]
    )  # an argument that came later
    assert not accuracy.finished(
        "mocov2", replace(entry, values={"method.tau": 0.2}), [line | {"values": unknown}]
    )
    other = replace(entry, values={"method.tau": 0.1})
    assert accuracy.finished("mocov2", other, [line | {"values": older}])


def test_the_speed_in_the_readme_is_the_last_one_measured():
    lines = (ROOT / "benchmarks" / "results" / "throughput.jsonl").read_text().splitlines()
    *_, (visit, ours) = (
        (visit, row["ours"]["images_per_second"])
        for visit in map(json.loads, lines)
        for row in visit["rows"]
        if row["recipe"] == "cifar10.simclr" and visit["lightly"]
    )
    page = " ".join((ROOT / "README.md").read_text().split())
    assert f"{ours:,.0f} images/s" in page
    assert all(f"{one['images_per_second']:,.0f}" in page for one in visit["lightly"])
