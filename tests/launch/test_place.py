"""Places and resources: what the texts of --on and --resources mean."""

import json
import shlex
from pathlib import Path

import pytest

import antipode
from antipode.launch import commands, dispatch, local
from antipode.launch.place import Place, Resources, place, resources
from antipode.launch.task import Task


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, Place()),
        ("local", Place()),
        ("slurm", Place("slurm")),
        ("ray", Place("ray")),
        ("ray://head:10001", Place("ray", "ray://head:10001")),
    ],
)
def test_a_place_is_read_from_its_name(text, found):
    assert place(text) == found
    assert place(found) is found


def test_an_unknown_place_is_an_error_that_names_the_nearest_one():
    with pytest.raises(ValueError, match="did you mean 'slurm'"):
        place("slrum")
    for wrong in ("ray://", "ray://head", "ray://head:port"):
        with pytest.raises(ValueError, match="must be ray://HOST:PORT"):
            place(wrong)


def test_resources_are_read_from_a_text_or_a_mapping():
    text = "gpus=4, nodes=2,hours=1.5,memory=64GB,partition=a,b,cpus=8,account=x"
    found = resources(text)
    assert found == Resources(
        gpus=4, nodes=2, hours=1.5, memory=64, partition="a,b", cpus=8, account="x"
    )
    assert found.ranks == 8
    assert resources({"gpus": 4, "nodes": 2}).ranks == 8
    assert resources(None) == resources("") == resources({}) == Resources()
    assert resources(found) is found
    assert resources("nodes=2,processes=3").ranks == 6
    assert Resources().ranks == 1


@pytest.mark.parametrize(
    ("text", "gigabytes"), [("64", 64), ("64G", 64), ("512MB", 0.5), ("2tb", 2048)]
)
def test_memory_has_units(text, gigabytes):
    assert resources(f"memory={text}").memory == gigabytes


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gpu=1", "no resource 'gpu', did you mean 'gpus'"),
        ("gpus", "has no ="),
        ("gpus=1,2", "'2' has no ="),
        ("gpus=-1", "at least 0"),
        ("gpus=half", "whole number"),
        ("nodes=0", "at least 1"),
        ("cpus=1.5", "whole number"),
        ("hours=0", "positive number"),
        ("hours=2h", "positive number such as 12"),
        ("hours=1.2.3", "positive number"),
        ("memory=64XB", "such as 64GB"),
        ("partition=", "needs a name"),
        ("gpus=1,gpus=2", "given twice"),
        ("gpus=2,processes=3", "one process per GPU"),
        (["gpus=2"], r"resources must be key=value,... or a mapping, not \['gpus=2'\]"),
        (0, "resources must be key=value,... or a mapping, not 0"),
    ],
)
def test_wrong_resources_are_errors_of_one_sentence(text, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        resources(text)
    assert "\n" not in str(caught.value)


# Dispatch

FAILED = {Path("x"): "failed"}


@pytest.mark.parametrize(
    ("where", "module", "name"),
    [
        (Place(), local, "perform"),
        (Place("slurm"), dispatch, "perform_on_slurm"),
        (Place("ray", "ray://head:1"), dispatch, "perform_on_ray"),
    ],
)
def test_every_place_gets_its_tasks(monkeypatch, where, module, name):
    calls = []

    def perform(tasks, **options):
        calls.append((list(tasks), options))
        return FAILED

    monkeypatch.setattr(module, name, perform)
    task = Task("label", Path("x"), print)
    asked = Resources() if where.kind == "local" else Resources(gpus=2)
    assert dispatch.perform([task], place=where, resources=asked, quiet=True) == FAILED
    [(tasks, options)] = calls
    assert tasks == [task] and options["quiet"] is True
    if where.kind == "ray":
        assert options["address"] == "ray://head:1"
    if where.kind != "local":
        assert options["resources"] == asked


def test_options_that_do_not_fit_the_place_are_errors():
    with pytest.raises(ValueError, match="needs a cluster"):
        dispatch.check(Place(), Resources(gpus=1))
    with pytest.raises(ValueError, match="the scheduler decides"):
        dispatch.check(Place("slurm"), Resources(), 2)
    with pytest.raises(ValueError, match="1 to 64 or auto"):
        dispatch.check(Place("slurm"), Resources(), "many")
    dispatch.check(Place("ray"), Resources(gpus=1))


def test_no_module_imports_a_scheduler_before_it_is_used():
    for path in Path(antipode.__file__).parent.rglob("*.py"):
        for line in path.read_text().splitlines():
            words = line.split() if not line.startswith((" ", "#")) else []
            imported = words[:1] in (["import"], ["from"]) and words[1].split(".")[0]
            assert imported not in ("ray", "submitit"), (path, line)


# Plain commands


def test_a_plain_command_has_the_arguments_that_were_given():
    given = {"method": None, "epochs": 3, "out": Path("/a b"), "overwrite": False}
    given["overrides"] = ["method.tau=0.1", "data.name=folder:/x y"]
    text = commands.plain_command("pretrain", "digits.dcl", given)
    assert text == (
        "antipode pretrain digits.dcl --epochs 3 --out '/a b' --set method.tau=0.1 "
        "--set 'data.name=folder:/x y'"
    )
    assert commands.plain_command("pretrain", None, {"overwrite": True}).endswith(" --overwrite")


def plain(recipe=None, **given):
    """Return the words of a plain command after `antipode pretrain`."""
    line = commands.plain_command("pretrain", recipe, {"out": None, "data": None, **given})
    return shlex.split(line)[2:]


def test_the_paths_of_a_plain_command_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    # the default folder has the name of the data set as the user has written it
    out = ["--out", f"{here}/runs/folder-lab.dcl"]
    assert plain(data="folder:lab") == [*out, "--data", f"folder:{here}/lab"]
    assert plain(
        overrides=["data.name=packed:lab", "backbone.weights=w.pth", "data.root=sets"]
    ) == [
        *("--out", f"{here}/runs/packed-lab.dcl", "--set", f"data.name=packed:{here}/lab"),
        *("--set", f"backbone.weights={here}/w.pth", "--set", f"data.root={here}/sets"),
    ]
    weights = ["--set", "backbone.weights=torchvision"]
    assert plain("digits.dcl", out="/x", overrides=weights[1:]) == [
        *("digits.dcl", "--out", "/x", *weights)
    ]


def test_the_relative_paths_in_a_recipe_file_are_in_a_plain_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = {"method": {"name": "dcl"}, "data": {"name": "folder:lab"}}
    Path("mine.json").write_text(json.dumps(content))
    words = [f"{tmp_path}/mine.json", "--out", "/x"]
    assert plain("mine.json", out="/x") == [*words, "--set", f"data.name=folder:{tmp_path}/lab"]
    assert plain("mine.json", out="/x", data="digits") == [*words, "--data", "digits"]
    # a run states where the paths of its recipe start
    Path("env.json").write_text(json.dumps({"directory": str(tmp_path)}))
    assert plain("mine.json", out="/x") == words


def test_several_processes_are_started_by_torchrun():
    line = "to train  antipode pretrain digits.dcl"
    assert commands.ranked(line) == commands.ranked(line, "gpus=1") == line
    assert commands.ranked(line, "gpus=4") == (
        "to train  torchrun --nnodes 1 --nproc-per-node 4 -m antipode pretrain digits.dcl"
    )
    assert "--nnodes 2" in commands.ranked(line, "nodes=2") and "HOST" in commands.ranked(
        line, "nodes=2"
    )


def test_under_torchrun_a_plan_names_the_processes_that_it_has_started(monkeypatch):
    line = "antipode pretrain digits.dcl"
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert commands.ranked(line).startswith("torchrun --nnodes 1 --nproc-per-node 4 -m antipode")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert commands.ranked(line).startswith("torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend")
    assert "--nproc-per-node 8" in commands.ranked(line, "gpus=8")
    assert commands.ranked(line, "gpus=1") == line == commands.ranked(line, "processes=1")
