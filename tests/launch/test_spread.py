"""Commands that are one task of a cluster: what the job does, and what the caller gets."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

import antipode
from antipode.launch import spread
from antipode.launch.task import JobFailed

SLURM = {"on": "slurm", "resources": "cpus=1"}


@pytest.fixture
def jobs(monkeypatch):
    """Perform the tasks of a cluster here, as a job that has received them would."""
    performed = []

    def perform(tasks, **options):
        performed.append((tasks, options))
        for task in tasks:
            pickle.loads(pickle.dumps(task)).do(True)
        return {}

    monkeypatch.setattr(spread, "perform", perform)
    return performed


@pytest.fixture
def pictures(tmp_path):
    random = np.random.default_rng(0)
    for number in range(12):
        file = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file)
    return f"folder:{tmp_path / 'pictures'}"


def test_embed_returns_what_its_job_has_written(jobs, pictures, tmp_path):
    network = "random:resnet10-slim"
    here = antipode.embed(network, pictures)
    for count, name in enumerate(("x.npz", "x.parquet"), 1):
        there = antipode.embed(network, pictures, tmp_path / name, **SLURM)
        assert len(jobs) == count
        assert torch.equal(here.x, there.x) and torch.equal(here.y, there.y)
    with pytest.raises(ValueError, match="needs out, the file to write"):
        antipode.embed(network, pictures, **SLURM)


def test_pack_writes_the_same_files_in_a_job(jobs, pictures, tmp_path):
    homes = [
        antipode.pack(pictures, tmp_path / "here", progress=False),
        antipode.pack(pictures, tmp_path / "there", progress=False, **SLURM),
    ]
    assert len(jobs) == 1
    contents = [
        {file.relative_to(home): file.read_bytes() for file in home.rglob("*") if file.is_file()}
        for home in homes
    ]
    assert contents[0] == contents[1] and contents[0]


def test_pretrain_trains_in_a_job_and_returns_the_run(jobs, pictures, tmp_path):
    asked = {"data": pictures, "labels": "none", "epochs": 1, "batch": 4, "device": "cpu"}
    asked |= {"backbone": "resnet10-slim", "overrides": {"views.size": 8}}
    run = antipode.pretrain(out=tmp_path / "run", **asked, **SLURM)
    assert run.path == tmp_path / "run" and (run.path / "backbone.safetensors").exists()
    [([task], options)] = jobs
    assert options["device"] == "cpu" and options["resources"].cpus == 1 and task.work
    antipode.pretrain(out=tmp_path / "run", **asked, **SLURM)
    antipode.pretrain(out=tmp_path / "run", **asked | {"labels": "auto"}, **SLURM)
    (_, _), ([second], _), ([third], _) = jobs
    assert not second.work and second.key == task.key != third.key


def test_a_failed_job_raises_its_sentence(monkeypatch, pictures, tmp_path):
    def perform(tasks, **options):
        return {tasks[0].folder: "pack: the disk is full"}

    monkeypatch.setattr(spread, "perform", perform)
    with pytest.raises(JobFailed, match="the disk is full"):
        antipode.pack(pictures, tmp_path / "packed", **SLURM)


def test_options_are_checked_before_anything_is_opened():
    for call in (
        lambda **options: antipode.embed("nothing", "folder:nothing", **options),
        lambda **options: antipode.pack("folder:nothing", "out", **options),
        lambda **options: antipode.pretrain(data="digits", **options),
        lambda **options: antipode.sweep("nothing", {}, "out", **options),
        lambda **options: antipode.reproduce("nothing", **options),
    ):
        with pytest.raises(ValueError, match="did you mean 'slurm'"):
            call(on="slrm")
        with pytest.raises(ValueError, match="did you mean 'gpus'"):
            call(on="slurm", resources="gpu=1")
        with pytest.raises(ValueError, match="needs a cluster"):
            call(resources={"gpus": 1})
