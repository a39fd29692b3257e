"""Plans: equal recipes share a run, finished runs are found, and the cost is estimated."""

import shlex

import pytest

from antipode.recipe.resolve import resolve
from antipode.reproduction.catalog import items
from antipode.reproduction.item import Grid, Item, Panel, Trial, score
from antipode.reproduction.plan import (
    V100,
    cost,
    digest,
    forward,
    judging,
    listing,
    make_plan,
    work,
)


def test_a_recipe_has_one_digest_wherever_it_lies_and_another_for_every_value_that_matters():
    plain = digest(resolve("digits.simclr"))
    assert (
        digest(
            resolve("digits.simclr", overrides={"data.root": "/elsewhere", "train.device": "cpu"})
        )
        == plain
    )
    for change in (
        {"train.seed": 1},
        {"method.tau": 0.3},
        {"monitor.knn_every": 1},
        {"train.keep": 9},
    ):
        assert digest(resolve("digits.simclr", overrides=change)) != plain, change


@pytest.mark.parametrize(
    "change",
    [
        {"train.on_collapse": "stop"},
        {"data.download": True},
        {"data.workers": 2},
        {"monitor.wandb": True},
        {"monitor.tensorboard": True},
    ],
)
def test_a_setting_that_changes_no_weight_and_no_record_keeps_the_digest(change):
    plain = resolve("digits.simclr")
    changed = resolve("digits.simclr", overrides=change)
    assert changed != plain
    assert digest(changed) == digest(plain)


def test_trials_with_one_recipe_share_a_run(tmp_path):
    """EqCo with alpha = K is the trial without EqCo at that K, so eight trials need seven runs."""
    plan = make_plan("eqco.fig1", "paper", tmp_path)
    assert len(plan.trials) == 8 and len(plan.runs) == 7
    shared = [runs[0].folder for trial, runs in plan.trials if trial.row == "K = 65536"]
    assert len(shared) == 2 and len(set(shared)) == 1


def test_items_share_runs_in_one_folder(tmp_path):
    first, second = (make_plan(name, "paper", tmp_path) for name in ("eqco.table3", "eqco.table4"))
    both = {run.folder for run in first.runs} & {run.folder for run in second.runs}
    trained = {folder for folder in both if not folder.name.startswith("random-")}
    assert len(trained) == 1, "SiMo with momentum .999 and Sync BN, 100 epochs, is in both tables"
    assert len(both) == 2, "the untrained network is in both tables, too"


def test_seeds_are_runs_of_their_own_and_their_number_can_be_chosen(tmp_path):
    plan = make_plan("eqco.table3", "small", tmp_path)  # two settings and an untrained network
    assert len(plan.runs) == 3 * 3 and [run.seed for run in plan.trials[0][1]] == [0, 1, 2]
    assert len(make_plan("eqco.table3", "small", tmp_path, seeds=1).runs) == 3
    assert len({run.folder for run in plan.runs}) == 9
    with pytest.raises(ValueError, match="at least one seed, got 0"):
        make_plan("eqco.table3", "small", tmp_path, seeds=0)


def test_what_is_finished_is_not_planned_again(tmp_path):
    plan = make_plan("eqco.table3", "smoke", tmp_path)
    first, second = plan.runs
    first.folder.mkdir(parents=True)
    (first.folder / "backbone.safetensors").touch()
    (second.folder / "checkpoints").mkdir(parents=True)
    (second.folder / "checkpoints" / "last.pt").touch()
    again = make_plan("eqco.table3", "smoke", tmp_path)
    assert [run.state for run in again.runs] == ["finished", "started"]
    assert again.missing == (again.runs[1],)
    assert "1 of 2 runs to train" in cost(again)
    (second.folder / "backbone.safetensors").touch()
    finished = make_plan("eqco.table3", "smoke", tmp_path)
    assert cost(finished) == "0 of 2 runs to train: all are finished"


def test_the_command_of_a_job_is_the_job(tmp_path):
    """A run trained alone, for instance under torchrun, must be the run that the item looks for."""
    for name in ("eqco.fig1", "eqco.fig4", "msbreg.table4", "jcl.figM2a", "dcl.table3"):
        runs = make_plan(name, "paper", tmp_path, seeds=2).runs
        planned = [run for run in runs if run.recipe is not None][-1]
        program, command, recipe, *words = shlex.split(planned.command)
        flags = list(zip(words[::2], words[1::2], strict=True))
        sets = [value for flag, value in flags if flag == "--set"]
        given = dict(flag for flag in flags if flag[0] != "--set")
        assert (program, command) == ("antipode", "pretrain")
        assert given["--out"] == str(planned.folder)
        flags = {"train.seed": int(given["--seed"])}
        assert resolve(recipe, overrides=sets, flags=flags) == planned.recipe


def test_the_cost_of_moco_v2_is_that_of_its_release(tmp_path):
    """The estimate uses 53 hours on 8 V100, 424 GPU-hours, for 200 epochs on ImageNet."""
    plan = make_plan("eqco.fig4", "paper", tmp_path)
    assert sum(run.work for run in plan.runs) / V100 / 3600 == pytest.approx(53 * 8, rel=1e-2)
    assert "424 GPU-hours of a V100" in cost(plan) and "53 h on 8" in cost(plan)


def test_operations_are_counted_as_the_field_does():
    # ResNet-50 has 4.09 G multiplications
    assert forward("resnet50", "imagenet", 224) == pytest.approx(2 * 4.09e9, rel=0.01)
    assert forward("resnet18", "small", 32) == pytest.approx(2 * 0.556e9, rel=0.01)


def test_work_counts_three_passes_of_what_learns_and_one_of_what_follows():
    epoch = 50_000 * forward("resnet18", "small", 32)
    passes = {"simclr": 3 * 2, "mocov2": 3 + 1, "byol": 3 * 2 + 2, "jcl": 3 + 5}
    for method, count in passes.items():
        more = {"method.keys": 5} if method == "jcl" else {}
        recipe = resolve(f"cifar10.{method}", overrides={"train.epochs": 7, **more})
        assert work(recipe) == pytest.approx(7 * count * epoch), method


def test_judging_counts_linear_protocols_and_detectors(tmp_path):
    images = 1_281_167 * forward("resnet50", "imagenet", 224)
    assert judging(make_plan("eqco.table1", "paper", tmp_path)) == pytest.approx(3 * 100 * images)
    detectors = judging(make_plan("eqco.table8", "paper", tmp_path))
    # Detectron2 states 42 V100-hours, with heads
    assert detectors / 4 / V100 / 3600 == pytest.approx(34, rel=0.1)
    assert judging(make_plan("eqco.fig4", "paper", tmp_path)) == 0


def test_a_network_that_is_not_trained_costs_nothing_and_has_a_folder_for_each_seed(
    tmp_path, monkeypatch
):
    trial = Trial("random:resnet18", {"data.name": "cifar10"}, (score("knn"),), "random", "knn")
    grids = dict.fromkeys(("smoke", "small", "paper"), Grid((trial,), "note", 2))
    monkeypatch.setitem(items(), "x.table1", Item("t", "q?", "s", "t", (Panel(),), grids))
    plan = make_plan("x.table1", "smoke", tmp_path)
    assert (
        not plan.missing
        and len({run.folder for run in plan.runs}) == 2
        and plan.runs[0].state == "not trained"
    )
    assert listing(plan)[2].split() == ["not", "trained", "random:resnet18"]


@pytest.mark.parametrize(
    ("name", "scale", "words"),
    [
        ("dcl.tabel1", "smoke", "did you mean 'dcl.table1'"),
        ("eqco.figure3", "smoke", "did you mean 'eqco.fig3'"),
        ("dcl.table1", "smalle", "did you mean 'small'"),
        ("dcl.table1", "", "choose from smoke, small, paper"),
    ],
)
def test_a_name_that_is_none_is_refused_with_the_nearest(tmp_path, name, scale, words):
    with pytest.raises(ValueError, match=words):
        make_plan(name, scale, tmp_path)
