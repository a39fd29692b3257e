"""`--plan --json` of sweeps and items is one object that another program can use."""

import json

import pytest

from antipode.cli import main
from antipode.reproduction import catalog
from antipode.reproduction import plan as items
from antipode.reproduction.item import Grid, Item, Panel, Trial, score
from antipode.sweeps import plan as sweeps
from antipode.sweeps.plan import make_plan
from tests.test_cli import call

SMALL = {"train.epochs": 1, "train.batch": 128, "backbone.name": "resnet10-slim"}


def printed(words, capsys):
    """Return the JSON object that a command prints."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--plan", "--json"])
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out)


def test_the_plan_of_a_sweep_has_settings_and_runs_with_commands(tmp_path, capsys):
    vary = {"method.tau": [0.1, 0.2]}
    plan = make_plan("digits.dcl", vary, tmp_path, seeds=2, overrides=SMALL)
    finished = plan.runs[0].folder
    finished.mkdir(parents=True)
    (finished / "backbone.safetensors").touch()
    words = ["sweep", "digits.dcl", "--vary", "method.tau=0.1,0.2", "--seeds", "2"]
    words += [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    found = printed([*words, "--out", str(tmp_path), "--resources", "gpus=2"], capsys)
    assert found["sweep"] == str(tmp_path)
    assert (found["vary"], found["seeds"], found["to_train"]) == (vary, 2, 3)
    assert [one["values"] for one in found["settings"]] == [{"method.tau": t} for t in (0.1, 0.2)]
    named = [name for one in found["settings"] for name in one["runs"]]
    assert named == [run["name"] for run in found["runs"]] == [run.folder.name for run in plan.runs]
    assert [run["seed"] for run in found["runs"]] == [0, 1, 0, 1]
    assert [run["finished"] for run in found["runs"]] == [True, False, False, False]
    assert [run["state"] for run in found["runs"]][:2] == ["finished", "to train"]
    for run in found["runs"]:
        assert run["folder"] == str(tmp_path / "runs" / run["name"]) and run["operations"] > 0
        assert run["command"].startswith("torchrun --nnodes 1 --nproc-per-node 2 -m antipode")
        assert run["command"].endswith(f"--out {run['folder']}")


def test_the_time_of_a_sweep_is_stated_unless_it_is_short_or_unknown(tmp_path, monkeypatch):
    plan = make_plan("digits.dcl", {"method.tau": [0.1]}, tmp_path, overrides=SMALL)
    assert sweeps.as_json(plan)["h200_seconds"] is None  # seconds of a GPU, meant for a CPU
    monkeypatch.setattr(sweeps, "H200", 1e6)
    assert sweeps.as_json(plan)["h200_seconds"] == plan.runs[0].work / 1e6
    assert "on one H200" in sweeps.listing(plan)[0]
    monkeypatch.setattr(sweeps, "work", lambda recipe: 0.0)
    unknown = make_plan("digits.dcl", {"method.tau": [0.1]}, tmp_path, overrides=SMALL)
    assert sweeps.as_json(unknown)["h200_seconds"] is None
    assert sweeps.as_json(unknown)["runs"][0]["operations"] is None


def test_the_plan_of_a_sweep_checks_the_protocols(tmp_path, capsys):
    words = ["sweep", "digits.dcl", "--vary", "method.tau=0.1", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--plan", "--protocol", "knnn"])
    assert ended.value.code == 2 and "did you mean 'knn'" in capsys.readouterr().err


def test_the_plan_of_an_item_has_settings_and_runs_with_commands(tmp_path, capsys):
    found = printed(["reproduce", "dcl.fig1", "--seeds", "2", "--out", str(tmp_path)], capsys)
    assert (found["item"], found["scale"], found["seeds"]) == ("dcl.fig1", "smoke", 2)
    assert found["settings"][0]["recipe"] == "digits.simclr"
    assert found["settings"][0]["runs"] == [run["name"] for run in found["runs"]]
    assert [run["seed"] for run in found["runs"]] == [0, 1] and found["to_train"] == 2
    assert all(run["command"].startswith("antipode pretrain digits") for run in found["runs"])
    assert found["h200_seconds"] is None and "about a minute" in found["cost"]


def test_the_plan_of_an_item_states_the_time_of_its_cost(tmp_path):
    found = items.as_json(items.make_plan("dcl.fig1", "paper", tmp_path))
    assert f"{found['h200_seconds'] / 3600:,.0f} GPU-hours of an H200" in found["cost"]


def test_a_network_that_is_not_trained_has_no_command(tmp_path, monkeypatch):
    trial = Trial("random:resnet18", {"data.name": "cifar10"}, (score("knn"),), "random", "knn")
    grids = dict.fromkeys(("smoke", "small", "paper"), Grid((trial,), "note", 1))
    monkeypatch.setitem(catalog.items(), "x.table1", Item("t", "q?", "s", "t", (Panel(),), grids))
    (row,) = items.as_json(items.make_plan("x.table1", "smoke", tmp_path))["runs"]
    assert (row["command"], row["state"], row["finished"]) == (None, "not trained", True)


@pytest.mark.parametrize(
    "command", ["sweep shapes.dcl --vary method.tau=.1 --out {out}", "reproduce dcl.fig1"]
)
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--at-once 0", "must be 1 to 64 or auto, got '0'"),
        ("--at-once many", "must be 1 to 64 or auto, got 'many'"),
        ("--at-once 2 --on slurm", "--at-once shares the device of this machine"),
        ("--on sulrm", "there is no place 'sulrm'"),
    ],
)
def test_a_plan_checks_how_many_runs_train_at_once(tmp_path, command, flags, sentence):
    status, out, err = call(f"{command.format(out=tmp_path)} --plan {flags}")
    assert (status, out) == (2, "") and sentence in err
