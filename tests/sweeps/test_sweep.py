"""Sweeps: every combination is a run of its own, named by its recipe, and the table is exact."""

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import antipode
from antipode.cli import main
from antipode.data.sources.catalog import SETS
from antipode.evaluation.protocol import stored_name
from antipode.reproduction.plan import digest
from antipode.runs.run import Run
from antipode.sweeps import run as sweep_run
from antipode.sweeps import table
from antipode.sweeps.charts import Line, line_chart, steps
from antipode.sweeps.curves import mean_curve
from antipode.sweeps.page import page
from antipode.sweeps.plan import make_plan
from antipode.sweeps.settings import combinations, varied
from antipode.sweeps.table import best_row
from tests.toys import fewer

SMALL = {"train.epochs": 1, "train.batch": 128, "backbone.name": "resnet10-slim"}


# Settings


def test_texts_are_split_at_commas_outside_brackets_and_quotes():
    found = varied(["method.tau=0.1, 0.2", "views.scale=[0.2, 1],[0.5, 1]", 'data.name="a,b",c'])
    assert found == {
        "method.tau": ["0.1", "0.2"],
        "views.scale": ["[0.2, 1]", "[0.5, 1]"],
        "data.name": ['"a,b"', "c"],
    }
    assert varied({"method.tau": (0.1, 0.2)}) == {"method.tau": [0.1, 0.2]}


def test_every_combination_comes_once():
    found = combinations({"a": [1, 2], "b": ["x", "y", "z"]})
    assert found[:3] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "z"}]
    assert len({json.dumps(one) for one in found}) == len(found) == 6
    assert combinations({}) == [{}]


@pytest.mark.parametrize(
    ("vary", "sentence"),
    [
        ({}, "a sweep needs vary, the values of at least one key"),
        ([], "a sweep needs vary, the values of at least one key"),
        ("method.tau=1", "vary must be a mapping or a list of key=value,value, not 'method.tau=1'"),
        (5, "vary must be a mapping or a list of key=value,value, not 5"),
        (["method.tau="], "needs values to vary"),
        (["method.tau=1,,2"], "needs values to vary"),
        (["method.tau=1,1"], "has the value '1' twice"),
        ({"method.tau": "0.1"}, "must be a list of values"),
        ({"method.tau": []}, "needs values to vary"),
        (["train.seed=0,1"], "use seeds in place of train.seed"),
        (["train.device=cpu,cuda"], "all runs of a sweep use one device"),
        (["method.tau"], "section.key=value"),
        ({"a": range(200), "b": range(200)}, "at most 10,000 settings, but these are 40,000"),
    ],
)
def test_wrong_values_are_explained(tmp_path, vary, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_plan("digits.dcl", vary, tmp_path)


def test_a_key_cannot_be_varied_and_set_and_seeds_are_counted(tmp_path):
    vary = {"method.tau": [0.1]}
    with pytest.raises(ValueError, match="varied and set at the same time"):
        make_plan("digits.dcl", vary, tmp_path, overrides={"method.tau": 0.2})
    for seeds in (0, 1001):
        with pytest.raises(ValueError, match=f"seeds per setting, got {seeds:,}"):
            make_plan("digits.dcl", vary, tmp_path, seeds=seeds)


# The plan


def test_runs_are_named_by_the_digest_of_their_recipe_and_shared(tmp_path):
    plan = make_plan("digits.dcl", {"method.tau": [0.1, 0.2]}, tmp_path, seeds=2, overrides=SMALL)
    assert len(plan.settings) == 2 and len(plan.runs) == 4
    for run in plan.runs:
        assert run.folder == tmp_path / "runs" / f"digits.dcl-{digest(run.recipe)}"
    assert [s.values for s in plan.settings] == [{"method.tau": 0.1}, {"method.tau": 0.2}]
    # two texts of one number are the same setting, so they share their run
    same = make_plan("digits.dcl", ["method.tau=0.1,0.10"], tmp_path)
    assert len(same.settings) == 2 and len(same.runs) == 1


def test_the_device_may_be_set_as_a_value_of_the_recipe(tmp_path):
    plan = make_plan(
        "digits.dcl", {"method.tau": [0.2]}, tmp_path, overrides={"train.device": "cpu"}
    )
    assert plan.device == "cpu" == plan.runs[0].recipe.train.device


def test_scalars_of_numpy_are_values(tmp_path):
    plan = make_plan("digits.dcl", {"train.batch": np.array([64, 128])}, tmp_path)
    assert [one.values for one in plan.settings] == [{"train.batch": 64}, {"train.batch": 128}]
    assert "--set train.batch=64 " in plan.runs[0].command


def test_the_command_of_a_recipe_from_python_trains_the_planned_recipe(tmp_path, capsys):
    content = {
        "method": {"name": "simclr"},
        "data": {"name": "digits"},
        "optim": {"network": {"lr": 0.1}},
    }
    [run] = make_plan(content, {"method.tau": [0.2]}, tmp_path, overrides=SMALL).runs
    words = shlex.split(run.command)[1:]
    assert "optim.network.lr=0.1" in words
    with pytest.raises(SystemExit) as ended:
        main([*words, "--device", "cpu", "--plan", "--json"])
    assert not ended.value.code
    planned = json.loads(capsys.readouterr().out)
    assert (planned["method"], planned["batch"]) == ("simclr", 128)


def test_the_commands_of_a_plan_have_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for at in range(4):
        (tmp_path / "lab").mkdir(exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), 60 * at, np.uint8)).save(tmp_path / f"lab/{at}.png")
    content = {"method": {"name": "dcl"}, "data": {"name": "folder:lab"}}
    Path("mine.json").write_text(json.dumps(content))
    fixed = {**SMALL, "train.batch": 2, "views.size": 16}
    for recipe in ("mine.json", content):
        plan = make_plan(recipe, {"method.tau": [0.1]}, tmp_path / "s", overrides=fixed)
        words = shlex.split(plan.runs[0].command)
        assert f"data.name=folder:{tmp_path}/lab" in words
        assert (words[2] == f"{tmp_path}/mine.json") == (recipe == "mine.json")
        # the run folder has the digest of the names that the user gave
        assert plan.runs[0].recipe.data.name == "folder:lab"


def test_the_commands_of_a_plan_train_the_planned_recipes(tmp_path, capsys):
    words = ["sweep", "digits.dcl", "--vary", "method.tau=0.1,0.2", "--out", str(tmp_path / "o")]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--set", "train.epochs=1", "--plan"])
    assert not ended.value.code
    out = capsys.readouterr().out
    head, *lines = out.splitlines()
    assert head.startswith("2 settings, 2 runs, 2 to train") and len(lines) == 2
    assert all(line.startswith("to train  antipode pretrain digits.dcl") for line in lines)
    assert "--set method.tau=0.2" in lines[1] and "--set train.epochs=1" in lines[1]
    assert not (tmp_path / "o").exists()


# Results


@pytest.fixture(scope="module", autouse=True)
def few_digits():
    """Let digits have a fifth of its train images."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SETS, "digits", fewer("digits", 300, 100))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep of two settings with two seeds, of which one setting cannot be trained."""
    out = tmp_path_factory.mktemp("sweep")
    vary = {"method.tau": [0.1, 0.3], "train.batch": [100, 5000]}
    found = antipode.sweep(
        "digits.dcl",
        vary,
        out,
        seeds=2,
        protocols=["knn20"],
        overrides={"train.epochs": 1, "backbone.name": "resnet10-slim"},
        device="cpu",
        quiet=True,
    )
    return out, found


def test_a_row_has_the_mean_and_deviation_of_the_scores_of_its_runs(finished):
    out, found = finished
    content = json.loads((out / "sweep.json").read_text())
    assert content["rows"] == found.rows and len(found.rows) == 4
    for row in found.rows:
        stored = [Run(out / run).scores for run in row["runs"] if (out / run).exists()]
        values = [scores["knn20"]["value"] for scores in stored if "knn20" in scores]
        if row["values"]["train.batch"] == 5000:
            assert row["mean"] == {} and values == []
            continue
        assert row["seeds"] == [0, 1] and row["scores"]["knn20"] == values
        assert row["mean"]["knn20"] == pytest.approx(statistics.fmean(values))
        assert row["std"]["knn20"] == pytest.approx(statistics.stdev(values))
        assert values[0] != values[1]


def test_a_run_that_fails_is_named_and_the_others_finish(finished):
    out, found = finished
    assert not found.ok and len(found.content["failed"]) == 4
    for folder, sentence in found.content["failed"].items():
        assert "train.batch=5000" in sentence and "5000" in sentence.partition(": ")[2]
        assert not (out / folder / "backbone.safetensors").exists()
    assert sum(bool(row["mean"]) for row in found.rows) == 2


def test_the_best_setting_is_chosen_without_test_labels(finished):
    _, found = finished
    assert found.content["chosen_by"] == "knn-held-out"
    means = [row["mean"].get("knn-held-out", -1) for row in found.rows]
    assert found.content["best"]["row"] == means.index(max(means))
    rows = [{"mean": {"a": 1.0, "b": 9.0}}, {"mean": {"a": 2.0, "b": 1.0}}, {"mean": {}}]
    assert best_row(rows, "a") == 1 and best_row(rows, "b") == 0 and best_row(rows, "c") is None


def test_the_same_call_again_trains_and_evaluates_nothing(finished, monkeypatch):
    out, found = finished

    def refuse(*_, **__):
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr(sweep_run, "evaluate", refuse)
    monkeypatch.setattr(sweep_run, "pretrain_recipe", refuse)
    again = antipode.sweep(
        "digits.dcl",
        {"method.tau": [0.1, 0.3], "train.batch": [100]},
        out,
        seeds=2,
        protocols=["knn20"],
        overrides={"train.epochs": 1, "backbone.name": "resnet10-slim"},
        device="cpu",
        quiet=True,
    )
    assert again.ok and again.rows == [row for row in found.rows if row["mean"]]


@pytest.mark.parametrize(
    ("stored", "computed"),
    [
        (("retrieval",), [None]),
        (("retrieval", "alignment-uniformity"), []),
        (("knn20", "knn-held-out"), []),
        (("knn20", "retrieval"), [["knn-held-out"]]),
    ],
)
def test_default_scores_that_are_missing_are_computed(finished, monkeypatch, stored, computed):
    out, _ = finished
    found = []
    monkeypatch.setattr(sweep_run, "evaluate", lambda run, names, **_: found.append(names))
    monkeypatch.setattr(Run, "scores", property(lambda _: {name: {} for name in stored}))
    vary = {"method.tau": [0.1], "train.batch": [100]}
    options = {"train.epochs": 1, "backbone.name": "resnet10-slim"}
    [run] = make_plan("digits.dcl", vary, out, overrides=options).runs
    assert run.done
    sweep_run.finish(run, (), "cpu", True)
    assert found == computed


@pytest.mark.parametrize(
    ("scores", "chosen_by"),
    [
        ([{"knn-held-out", "retrieval"}, {"retrieval"}, set()], "retrieval"),
        ([{"knn-held-out"}, {"retrieval"}], None),
        ([set(), set()], None),
    ],
)
def test_the_best_setting_is_chosen_by_a_score_that_all_of_them_have(
    monkeypatch, scores, chosen_by
):
    rows = iter([{"values": {}, "mean": dict.fromkeys(names, 1.0)} for names in scores])
    monkeypatch.setattr(table, "row", lambda *_: next(rows))
    plan = SimpleNamespace(settings=scores, vary={}, out=None)
    content = table.results(plan, (), {})
    assert content["chosen_by"] == chosen_by
    assert (content["best"] is None) == (chosen_by is None)


def test_a_protocol_with_a_data_set_of_its_own_is_not_repeated():
    assert stored_name("detect-voc", "cifar10") == "detect-voc@voc07+12"
    assert stored_name("detect-voc", "voc07+12") == "detect-voc"
    assert stored_name("knn", "cifar10") == "knn"


def test_a_damaged_score_costs_only_its_own_run(finished, tmp_path, capsys):
    out, _ = finished
    place = tmp_path / "copy"
    shutil.copytree(out, place)
    options = {"train.epochs": 1, "backbone.name": "resnet10-slim"}
    vary = {"method.tau": [0.1, 0.3], "train.batch": [100]}
    [damaged, *_] = make_plan("digits.dcl", vary, place, overrides=options).runs
    (damaged.folder / "scores.json").write_text('{"knn20": {"val')
    again = antipode.sweep(
        "digits.dcl", vary, place, protocols="knn20", overrides=options, device="cpu", quiet=True
    )
    [sentence] = again.content["failed"].values()
    assert "scores.json" in sentence
    assert [bool(row["mean"]) for row in again.rows] == [False, True]


def test_the_page_counts_runs_once_and_seeds_with_scores():
    row = {"values": {"a": 1}, "seeds": [0, 1], "runs": ["runs/x", "runs/y"], "mean": {"knn": 5.0}}
    row |= {"std": {"knn": None}, "scores": {"knn": [5.0, None]}}
    content = {"rows": [row, row | {"values": {"a": 1.0}}], "vary": {"a": [1, 1.0]}}
    content |= {"best": None, "chosen_by": None, "failed": {}}
    text = page(content, Path("nowhere"))
    assert "2 settings, 2 runs" in text and ">1 of 2</td>" in text


def test_the_page_holds_every_setting_and_escapes_what_it_shows(finished):
    out, found = finished
    text = page(found.content, out)
    assert found.report.read_text().startswith("<!doctype html>")
    assert text.count("<tr") == 1 + 4 and text.count("<figure>") >= 3
    assert 'class="best"' in text and "knn-held-out" in text and "://" not in text
    evil = json.loads(json.dumps(found.content).replace("method.tau", "<script>x"))
    assert "<script>x" not in page(evil, out)


# Charts


@pytest.mark.parametrize(("low", "high"), [(0, 1), (88.2, 91.7), (-3, 1e6), (5, 5), (1e-7, 3e-7)])
def test_steps_are_few_round_and_cover_the_range(low, high):
    found = steps(low, high)
    assert found[0] <= low and found[-1] >= high and 1 <= len(found) <= 7
    assert all(a < b for a, b in pairwise(found))


def test_a_chart_places_points_in_proportion():
    chart = line_chart("t", [Line("a", [(0, 0.0, 0.0), (1, 5.0, 0.0), (4, 10.0, 0.0)])])
    points = chart.partition('points="')[2].partition('"')[0].split()
    (x0, y0), (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in points)
    assert (x1 - x0) * 4 == pytest.approx(x2 - x0, abs=0.5)
    assert (y1 - y0) * 2 == pytest.approx(y2 - y0, abs=0.5) and y2 < y0


def test_a_curve_is_the_mean_over_seeds_at_its_epochs(tmp_path):
    for name, level in (("a", 1.0), ("b", 3.0)):
        (tmp_path / name).mkdir()
        rows = [{"step": at, "epoch": at // 2, "loss": level * (at + 1)} for at in range(4)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name / "metrics.jsonl").write_text(text)
    found = mean_curve([tmp_path / "a", tmp_path / "b", tmp_path / "none"], "loss")
    assert found == [(0.5, 2.0), (1.0, 4.0), (1.5, 6.0), (2.0, 8.0)]
    assert mean_curve([tmp_path / "none"], "loss") == []


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])
def test_side_by_side_gives_the_bits_of_one_after_the_other(tmp_path, threads):
    files = {}
    for at_once in ("1", "2"):
        out = tmp_path / at_once
        words = ["sweep", "digits.dcl", "--vary", "method.tau=0.1,0.3", "--protocol", "knn20"]
        for key, value in SMALL.items():
            words += ["--set", f"{key}={value}"]
        words += ["--device", "cpu", "--at-once", at_once, "--out", str(out)]
        subprocess.run(
            [sys.executable, "-m", "antipode", *words],
            check=True,
            capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": threads},
        )
        found = out.glob("runs/*/backbone.safetensors")
        files[at_once] = {file.parent.name: file.read_bytes() for file in found}
    assert len(files["1"]) == 2 and files["1"] == files["2"]
