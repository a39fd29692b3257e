"""Making an item: reuse of finished work, resuming, and reports of what is violated or missing."""

import json
import os
import shutil
import statistics
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import antipode
from antipode import cli
from antipode.data.sources.catalog import SETS
from antipode.evaluation.protocol import Protocol, protocols
from antipode.evaluation.score import Result
from antipode.launch.task import duration
from antipode.nets.weights import read
from antipode.recipe.resolve import resolve
from antipode.reproduction import make, measure, picture, present, ready, scenes
from antipode.reproduction.catalog import items
from antipode.reproduction.collect import over_epochs, points
from antipode.reproduction.item import (
    EMPIRICAL,
    SCALES,
    Grid,
    Item,
    Law,
    Panel,
    Trial,
    Verdict,
    analysis,
    metric,
    score,
)
from antipode.reproduction.plan import make_plan
from antipode.runs.run import Run
from antipode.training import loop as train
from antipode.training.loop import Interrupted
from tests.toys import fewer

QUICK = {"train.epochs": 2, "train.batch": 90, "monitor.log_every": 1, "monitor.knn_every": 1}


def toy(laws=(), *, seeds=1, data="digits", title="a <b>toy</b> & more"):
    """Return an item of two short runs: a table of kNN, a curve over epochs, and an analysis."""
    trials = tuple(
        Trial(
            f"{data}.{method}",
            QUICK,
            (
                score("knn20"),
                metric("knn", panel="curve"),
                analysis(
                    "alignment-uniformity", "values.uniformity, head", panel="", column="uniformity"
                ),
            ),
            method,
            "kNN",
        )
        for method in ("simclr", "dcl")
    )
    grid = Grid(trials, "a note with <i>marks</i>", seeds)
    panels = Panel(y="%"), Panel("curve", "curve", "epoch", "kNN (%)")
    paper = {("", "simclr", "kNN"): 12.5, ("", "quoted <script>", "kNN"): 99.0}
    return Item(
        title,
        "does it work?",
        "nowhere",
        "up",
        panels,
        dict.fromkeys(("smoke", "small", "paper"), grid),
        paper,
        laws=laws,
    )


@pytest.fixture(scope="module", autouse=True)
def few_digits():
    """Let digits have 360 train images, a fourth, and 90 test images; yield the loader of all."""
    whole = SETS["digits"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SETS, "digits", fewer("digits", 360, 90))
        yield whole


@pytest.fixture
def all_digits(few_digits, monkeypatch):
    """Let digits have all of its images, which items at scale smoke need."""
    monkeypatch.setitem(SETS, "digits", few_digits)


@pytest.fixture
def toys(monkeypatch):
    def add(**settings):
        monkeypatch.setitem(items(), "toy.table1", toy(**settings))

    return add


def refuse(*_, **__):
    raise AssertionError("this must not be called")


def record_first(monkeypatch, module, name, calls):
    """Record the first argument of every call of a function."""
    function = getattr(module, name)

    def recording(first=None, *rest, **keywords):
        calls.append(first)
        return function(first, *rest, **keywords)

    monkeypatch.setattr(module, name, recording)


@pytest.fixture(scope="module")
def made_with_calls(tmp_path_factory):
    """The outcome of the toy item with two seeds, and the calls of four functions that made it."""
    calls = {"resolve": [], "pretrain_recipe": [], "evaluate": [], "analyse": []}
    importers = [
        module
        for name, module in sys.modules.items()
        if name.startswith("antipode.") and getattr(module, "resolve", None) is resolve
    ]
    assert sys.modules["antipode.reproduction.plan"] in importers
    with pytest.MonkeyPatch.context() as patch:
        for module in importers:
            record_first(patch, module, "resolve", calls["resolve"])
        record_first(patch, make, "pretrain_recipe", calls["pretrain_recipe"])
        record_first(patch, measure, "evaluate", calls["evaluate"])
        record_first(patch, measure, "analyse", calls["analyse"])
        patch.setitem(items(), "toy.table1", toy(seeds=2))
        out = tmp_path_factory.mktemp("made")
        return antipode.reproduce("toy.table1", scale="smoke", out=out, quiet=True), calls


@pytest.fixture(scope="module")
def made(made_with_calls):
    """The outcome of the toy item with two seeds, made once for all tests."""
    return made_with_calls[0]


def test_cells_hold_the_scores_of_the_runs(made):
    for trial, runs in made.plan.trials:
        scores = [Run(planned.folder).scores["knn20"]["value"] for planned in runs]
        assert made.cells["", trial.row, "kNN"] == scores and len(scores) == 2
        curve = [made.cells["curve", trial.row, float(epoch)] for epoch in (1, 2)]
        logged = [
            [row["knn"] for row in Run(planned.folder).metrics() if "knn" in row]
            for planned in runs
        ]
        assert curve == [list(column) for column in zip(*logged, strict=True)]


def test_the_record_has_mean_spread_number_and_the_papers_number(made):
    record = json.loads(made.files["json"].read_text())
    entry = next(
        cell for cell in record["cells"] if (cell["row"], cell["column"]) == ("simclr", "kNN")
    )
    values = made.cells["", "simclr", "kNN"]
    assert entry["mean"] == pytest.approx(sum(values) / 2) and entry["n"] == 2
    assert entry["std"] == pytest.approx(statistics.stdev(values))
    assert entry["paper"] == 12.5 and entry["source"] == "nowhere"
    quoted = next(cell for cell in record["cells"] if cell["row"] == "quoted <script>")
    assert quoted["n"] == 0 and quoted["mean"] is None and quoted["paper"] == 99.0
    assert record["environment"]["torch"] == torch.__version__ and record["seconds"] > 0


def test_the_text_sets_our_number_beside_the_papers(made):
    text = present.summary_text(make.record(made))
    line = next(line for line in text.splitlines() if line.startswith("simclr"))
    values = made.cells["", "simclr", "kNN"]
    mean, spread = statistics.mean(values), statistics.stdev(values)
    assert f"{present.number(mean)} ± {present.number(spread)} (12.5)" in line
    assert "- (99.0)" in text and "n = 2 seeds" in text


def test_the_page_is_whole_and_every_text_in_it_is_escaped(made):
    page = made.files["html"].read_text()
    assert "<b>toy</b>" not in page and "a &lt;b&gt;toy&lt;/b&gt; &amp; more" in page
    assert "<script" not in page and "quoted &lt;script&gt;" in page and "<i>marks" not in page
    assert "http" not in page.replace("http-equiv", ""), "the page is self-contained"


def test_the_picture_is_a_png_and_is_in_the_page(made):
    pytest.importorskip("matplotlib")
    png = made.files["png"].read_bytes()
    assert png.startswith(b"\x89PNG")
    assert present._base64(png) in made.files["html"].read_text()


def test_without_matplotlib_there_is_a_page_without_a_picture(made, monkeypatch, tmp_path):
    monkeypatch.setattr(
        picture, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name))
    )
    files = {kind: tmp_path / f"x.{kind}" for kind in ("json", "png", "html")}
    outcome = make.Outcome(made.plan, made.cells, (), (), 1.0, files)
    make.write(outcome)
    assert set(outcome.files) == {"json", "html"} and "<img" not in files["html"].read_text()


def test_a_second_call_trains_and_judges_nothing(made, toys, monkeypatch):
    toys(seeds=2)
    monkeypatch.setattr(make, "pretrain_recipe", refuse)
    monkeypatch.setattr(measure, "evaluate", refuse)
    monkeypatch.setattr(measure, "analyse", refuse)
    again = make.reproduce("toy.table1", "smoke", made.plan.out, quiet=True)
    assert again.cells == made.cells and again.ok


@pytest.mark.parametrize("settings", [{"images": 64}, {"seed": 7}])
def test_an_analysis_that_was_made_otherwise_is_made_again(settings, made, toys):
    toys(seeds=2)
    antipode.analyse(made.plan.runs[0].folder, ["alignment-uniformity"], **settings)
    assert make.reproduce("toy.table1", "smoke", made.plan.out, quiet=True).cells == made.cells


def test_a_score_of_another_seed_is_made_again(made, toys):
    toys(seeds=2)
    first = made.plan.runs[0]
    antipode.evaluate(first.folder, ["knn20"], seed=99)
    make.reproduce("toy.table1", "smoke", made.plan.out, quiet=True)
    assert Run(first.folder).scores["knn20"]["seed"] == first.seed


def test_each_new_run_is_resolved_once_and_opened_once(made_with_calls):
    """The plan resolves the recipes. Training uses them, and all measures use one open run."""
    outcome, calls = made_with_calls
    runs = outcome.plan.runs
    assert outcome.ok and len(runs) == 4
    assert len(calls["resolve"]) == 4, "once for each run"
    assert all(a is run.recipe for a, run in zip(calls["pretrain_recipe"], runs, strict=True))
    assert [run.path for run in calls["evaluate"]] == [run.folder for run in runs]
    assert all(a is b for a, (b,) in zip(calls["evaluate"], calls["analyse"], strict=True))


def test_another_item_of_the_folder_reuses_its_runs(made, monkeypatch):
    trial = Trial("digits.dcl", QUICK, (score("knn"),), "DCL", "kNN")
    grids = dict.fromkeys(("smoke", "small", "paper"), Grid((trial,), "note"))
    monkeypatch.setitem(items(), "other.table1", Item("t", "q?", "s", "t", (Panel(),), grids))
    monkeypatch.setattr(make, "pretrain_recipe", refuse)
    outcome = make.reproduce("other.table1", "smoke", made.plan.out, quiet=True)
    assert outcome.ok and len(outcome.cells["", "DCL", "kNN"]) == 1


def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(made, toys, monkeypatch, tmp_path):
    toys(seeds=1)

    class Later(list):
        """A request to stop after ten steps. The first run has eight, so the second has started."""

        looks = 0

        def __bool__(self):
            Later.looks += 1
            return Later.looks == 10

    @contextmanager
    def interrupts(*_):
        yield Later()

    with monkeypatch.context() as patch:
        patch.setattr(train, "interrupts", interrupts)
        with pytest.raises(Interrupted, match="resumes from there"):
            make.reproduce("toy.table1", "smoke", tmp_path, quiet=True)
    states = [planned.state for planned in make_plan("toy.table1", "smoke", tmp_path).runs]
    assert states == ["finished", "started"]
    outcome = make.reproduce("toy.table1", "smoke", tmp_path, quiet=True)
    assert outcome.cells == {place: values[:1] for place, values in made.cells.items()}
    first_seeds = made.plan.runs[::2]
    for resumed, whole in zip(outcome.plan.runs, first_seeds, strict=True):
        a, b = (read(planned.folder / "backbone.safetensors") for planned in (resumed, whole))
        assert all(torch.equal(a[name], b[name]) for name in b)
        assert [row["step"] for row in Run(resumed.folder).metrics()] == [
            row["step"] for row in Run(whole.folder).metrics()
        ]


LAWS = (
    Law("one is one", lambda cells: Verdict(1.0, "it is"), SCALES),
    Law(
        "kNN is perfect",
        lambda cells: Verdict(
            min(cells["", "dcl", "kNN"]) - 100, f"it is {cells['', 'dcl', 'kNN']}", 0.01
        ),
        SCALES,
    ),
    Law("experience", lambda cells: Verdict(-1.0, "not checked at smoke"), EMPIRICAL),
)


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        cli.main(list(words))
    out, err = capsys.readouterr()
    return end.value.code, out, err


def test_a_violated_law_is_said_loudly_and_is_status_1_after_all_is_written(made, toys, capsys):
    toys(seeds=2, laws=LAWS)
    status, out, _ = run(capsys, "reproduce", "toy.table1", "--out", str(made.plan.out))
    assert status == 1
    assert "VIOLATED: kNN is perfect (it is [" in out and "holds: one is one" in out
    assert "experience" not in out and "1 law is not checked at scale smoke" in out
    record = json.loads((made.plan.out / "toy.table1.json").read_text())
    assert [law["holds"] for law in record["laws"]] == [True, False]
    assert [law["verdict"] for law in record["laws"]] == ["holds", "does not hold"]
    assert record["not judged"] == ["experience"]
    assert "violated" in (made.plan.out / "toy.table1.html").read_text()


@pytest.mark.parametrize(("interval", "word"), [(2.0, "undecided"), (0.5, "does not hold")])
def test_an_undecided_law_is_not_violated(made, toys, interval, word):
    toys(seeds=2, laws=(Law("it holds", lambda _: Verdict(-1.0, "it is", interval), SCALES),))
    outcome = make.reproduce("toy.table1", "smoke", made.plan.out, quiet=True)
    assert [verdict.word for _, verdict in outcome.laws] == [word]
    assert outcome.ok == (word == "undecided")


def test_laws_of_experience_are_asked_of_the_small_scale(made, toys, monkeypatch):
    toys(seeds=2, laws=LAWS)
    outcome = make.reproduce("toy.table1", "small", made.plan.out, quiet=True)
    assert [law.text for law, _ in outcome.laws] == [
        "one is one",
        "kNN is perfect",
        "experience",
    ]


def test_json_is_one_object_with_the_files(made, toys, capsys):
    toys(seeds=2)
    status, out, _ = run(capsys, "reproduce", "toy.table1", "--out", str(made.plan.out), "--json")
    content = json.loads(out)
    assert status == 0 and content["item"] == "toy.table1"
    assert content["files"]["html"].endswith("toy.table1.html")


def test_one_run_that_fails_leaves_the_others_and_is_named(made, toys, monkeypatch, tmp_path):
    toys()
    shutil.copytree(made.plan.out / "runs", tmp_path / "runs")
    for file in tmp_path.rglob("scores.json"):
        file.unlink()
    original = measure.evaluate

    def evaluate(run, *rest, **more):
        if "digits.dcl" in str(run):
            raise ValueError("7 of 9 images have features that are not numbers")
        return original(run, *rest, **more)

    monkeypatch.setattr(measure, "evaluate", evaluate)
    outcome = make.reproduce("toy.table1", "smoke", tmp_path, quiet=True)
    assert not outcome.ok and len(outcome.missing) == 1 and "7 of 9 images" in outcome.missing[0]
    assert ("", "simclr", "kNN") in outcome.cells and ("", "dcl", "kNN") not in outcome.cells
    assert "MISSING: digits.dcl" in present.summary_text(make.record(outcome))


def test_a_law_whose_numbers_are_missing_is_violated(made):
    law = Law("x", lambda cells: Verdict(1.0, str(cells["", "nobody", 1])))
    ((_, verdict),) = make.check_laws(toy(laws=(law,)), "small", {})
    assert not verdict.holds and verdict.word == "does not hold"
    assert "numbers are missing" in verdict.text


def test_a_data_set_that_is_not_there_is_said_before_anything_trains(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("ANTIPODE_DATA", raising=False)
    monkeypatch.setattr(make, "pretrain_recipe", refuse)
    status, _, err = run(
        capsys, "reproduce", "dcl.table3", "--scale", "small", "--out", str(tmp_path / "o")
    )
    assert status == 2
    assert "dcl.table3 at scale small needs cifar10" in err and "ANTIPODE_DATA" in err
    assert err.count("\n") == 1 and not (tmp_path / "o").exists()
    # the weights of the supervised network would be downloaded
    monkeypatch.setattr(ready, "opened", lambda *_, **__: SimpleNamespace(backbone=lambda: None))
    status, _, err = run(
        capsys, "reproduce", "eqco.table8", "--scale", "paper", "--root", str(tmp_path)
    )
    assert status == 2 and "needs coco" in err and str(tmp_path) in err


def test_the_folder_of_the_data_is_for_the_time_of_the_call_and_no_part_of_a_recipe(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("ANTIPODE_DATA", "/before")
    with make.data_root(tmp_path):
        assert os.environ["ANTIPODE_DATA"] == str(tmp_path)
    assert os.environ["ANTIPODE_DATA"] == "/before"
    with make.data_root(None):
        assert os.environ["ANTIPODE_DATA"] == "/before"
    monkeypatch.delenv("ANTIPODE_DATA")
    with pytest.raises(KeyError), make.data_root(tmp_path):
        raise KeyError
    assert "ANTIPODE_DATA" not in os.environ
    plan = make_plan("eqco.table3", "small", tmp_path, root="/data")
    assert plan.runs[0].recipe.data.root is None and "data.root=" in plan.runs[0].command
    assert plan.runs[0].folder == make_plan("eqco.table3", "small", tmp_path).runs[0].folder


def test_a_network_that_nobody_trained_is_judged_like_a_run(monkeypatch, tmp_path):
    trial = Trial(
        "random:resnet10-slim", {"data.name": "digits"}, (score("knn20"),), "random", "kNN"
    )
    grids = dict.fromkeys(("smoke", "small", "paper"), Grid((trial,), "note", 2))
    monkeypatch.setitem(items(), "x.table1", Item("t", "q?", "s", "t", (Panel(),), grids))
    monkeypatch.setattr(make, "pretrain_recipe", refuse)
    first = make.reproduce("x.table1", "smoke", tmp_path, quiet=True)
    values = first.cells["", "random", "kNN"]
    assert first.ok and len(set(values)) == 2, "two seeds are two networks"
    monkeypatch.setattr(measure, "evaluate", refuse)
    assert make.reproduce("x.table1", "smoke", tmp_path, quiet=True).cells == first.cells


def test_a_protocol_with_a_data_set_of_its_own_is_found_and_not_run_again(monkeypatch, tmp_path):
    """As in EqCo's table 8: trained on one data set, evaluated on COCO, which is in `root`."""
    evaluated = []

    def judge(task):
        evaluated.append(task.splits.name)
        return Result(40.0, "% AP", {}, len(task.splits.test), {"AP50": 60.0})

    monkeypatch.setitem(protocols(), "detect-coco", Protocol(judge, "a stand-in", "coco"))
    monkeypatch.delenv("ANTIPODE_DATA", raising=False)
    measures = score("detect-coco", column="AP"), score("detect-coco", "more.AP50", column="AP50")
    home = scenes.draw(tmp_path, 4, 3)
    quick = {
        "data.name": f"folder:{home}/coco/images",
        "backbone.name": "resnet10-slim",
        "backbone.stem": "small",
        "train.epochs": 1,
        "train.batch": 4,
        "views.policy": "simclr-cifar",
        "views.size": 16,
    }
    trials = (
        Trial("simclr", quick, measures, "trained"),
        Trial("random:resnet10-slim", {"data.name": "coco"}, measures, "random"),
    )
    grids = dict.fromkeys(("smoke", "small", "paper"), Grid(trials, "note"))
    monkeypatch.setitem(items(), "x.table1", Item("t", "q?", "s", "t", (Panel(),), grids))
    for _ in range(2):
        outcome = make.reproduce("x.table1", "smoke", tmp_path / "o", root=home, quiet=True)
        assert outcome.ok and evaluated == ["coco", "coco"], "once for each network"
        assert outcome.cells == {
            ("", row, c): [x]
            for row in ("trained", "random")
            for c, x in (("AP", 40), ("AP50", 60))
        }


def test_a_library_that_is_not_there_is_said_before_anything_trains(monkeypatch, tmp_path):
    monkeypatch.setattr(
        ready, "library", lambda: (_ for _ in ()).throw(ValueError("needs pycocotools"))
    )
    monkeypatch.setattr(make, "pretrain_recipe", refuse)
    with pytest.raises(ValueError, match="pycocotools"):
        make.reproduce("eqco.table8", "smoke", tmp_path, quiet=True)


def test_the_plan_says_what_it_would_do_and_does_nothing(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(make, "pretrain_recipe", refuse)
    status, out, _ = run(
        capsys, "reproduce", "eqco.fig2", "--scale", "paper", "--plan", "--out", str(tmp_path / "o")
    )
    lines = out.splitlines()
    assert status == 0 and "GPU-hours" in lines[1] and len(lines) == 2 + 39 + 1
    assert not (tmp_path / "o").exists()
    *trained, untrained = lines[2:]
    assert all(line.startswith("to train     antipode pretrain imagenet.eqco") for line in trained)
    assert untrained == "not trained  random:resnet50"


def test_several_processes_are_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, _, err = run(capsys, "reproduce", "eqco.table3", "--out", str(tmp_path))
    assert status == 2 and "torchrun" in err and "--plan" in err


def test_points_of_numbers_curves_and_histograms():
    assert list(points(3)) == [(None, 3.0)]
    assert list(points({"x": [1, 2], "y": [5.0, None]})) == [(1, 5.0)]
    assert list(points({"edges": [0.0, 1.0, 2.0], "counts": [1, 3]})) == [(0.5, 0.25), (1.5, 0.75)]


def test_metrics_are_means_over_epochs_counted_from_one():
    logged = [(0, {"a": 1.0}), (0, {"a": 3.0}), (1, {"a": 5.0}), (2, {"b": 1.0})]
    rows = [{"step": step, "epoch": epoch, **values} for step, (epoch, values) in enumerate(logged)]
    assert over_epochs(rows, "a") == {"x": [1.0, 2.0], "y": [2.0, 5.0]}
    with pytest.raises(KeyError):
        over_epochs(rows, "c")


def test_columns_that_are_numbers_stand_in_their_order_and_a_deviation_is_a_ribbon():
    panels = Panel("", "table", "K"), Panel("c", "curve", "K", "length")
    item = replace(items()["eqco.table6"], panels=panels)
    cells = {("", "row", 16): [2.0], ("", "row", 4): [1.0], ("", "row", 256): [3.0]}
    for k in (4, 16):
        cells |= {("c", "mean, epoch 1", k): [2.0], ("c", "deviation, epoch 1", k): [0.5]}
    record = {"cells": [present.cell(item, cells, place) for place in cells]}
    assert present.grid(record, {"name": "", "kind": "table"})[1] == [4, 16, 256]
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axis = figure.subplots()
    picture._curves(axis, item, cells, item.panels[1])
    (band,) = axis.collections
    assert len(axis.lines) == 1 and band.get_paths()[0].vertices[:, 1].min() == 1.5


def test_a_text_of_a_long_curve_says_what_it_leaves_out_and_keeps_the_papers_numbers():
    item = replace(
        items()["eqco.table6"],
        panels=(Panel("c", "curve", "epoch", "%"),),
        paper={("c", "row", 17): 1.0},
    )
    cells = {("c", "row", epoch): [1.0] for epoch in range(1, 101)}
    record = {"cells": [present.cell(item, cells, place) for place in cells]}
    lines = present._panel(record, item.panels[0]._asdict())
    assert "17" in lines[0].split() and lines[-1] == f"({present.FEW + 1} of 100 shown)"


def test_durations_and_numbers_are_for_people():
    assert [duration(x) for x in (5, 89, 120, 7200)] == ["5 s", "89 s", "2 min", "2.0 h"]
    assert [present.number(x) for x in (None, 0.0, 71.94, -1.518, 0.00123)] == [
        "-",
        "0.0",
        "71.9",
        "-1.52",
        "0.00123",
    ]
    assert [present.number(x) for x in (0.9996, 1.0, 3.5)] == ["0.9996", "1", "3.5"]


@pytest.mark.slow
def test_one_item_from_end_to_end(capsys, tmp_path, all_digits):
    """DCL's figure 1 at scale smoke, as a user calls it: train, analyse, draw, check the laws."""
    status, out, err = run(capsys, "reproduce", "dcl.fig1", "--out", str(tmp_path))
    assert status == 0 and "1 of 1 runs to train" in err and "1 of 1, about a minute left" in err
    assert out.count("holds: ") == 4 and "VIOLATED" not in out and "MISSING" not in out
    record = json.loads((tmp_path / "dcl.fig1.json").read_text())
    mean = {
        cell["column"]: cell["mean"] for cell in record["cells"] if cell["row"] == "mean of q_B"
    }
    assert list(mean) == [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert 0 < mean[4] < 0.9 < mean[1024] < 1
    shares = [cell["mean"] for cell in record["cells"] if cell["row"] == "batch size 32"]
    assert len(shares) == 100 and sum(shares) == pytest.approx(1)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    return tmp_path_factory.mktemp("everything")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(items()))
def test_every_item_is_made_at_the_smoke_scale_in_about_a_minute(name, everything, all_digits):
    """CPU time is measured, so that other work on the machine does not matter."""
    start = time.process_time()
    outcome = make.reproduce(name, "smoke", everything / name, quiet=True)
    spent = time.process_time() - start
    assert outcome.ok, present.summary_text(make.record(outcome))
    for trial, _ in outcome.plan.trials:
        for taken in trial.measures:
            panel, row, _ = trial.place(taken)
            assert any(place[:2] == (panel, row) for place in outcome.cells), (panel, row)
    assert spent < 90, f"{name} took {spent:.0f} s of CPU time"
    print(f"{name}: {spent:.0f} s of CPU time, {outcome.seconds:.0f} s")


@pytest.mark.skipif("ANTIPODE_DATA" not in os.environ, reason="needs CIFAR-10 in ANTIPODE_DATA")
def test_the_small_scale_finds_its_data(tmp_path):
    make.check_ready(make_plan("dcl.table3", "small", tmp_path))
