"""Several ranks train like one process, end together, and resume together."""

import random
import subprocess
import sys
import time

import pytest
import torch

from antipode.runs.folder import RunFolder
from antipode.training.step import Step
from tests.training.runs import (
    alive,
    children,
    environment,
    equal,
    last,
    launch,
    pretrain,
    reached,
    spoiled,
    started,
)

pytestmark = [pytest.mark.dist, pytest.mark.xdist_group("ranks")]

EPOCHS = 4  # of two steps each
METHODS = ["simclr", "mocov2", "adco", "dclw", "msbreg"]
DOUBLE = {"train.precision": "fp64"}
DEATH = random.Random(3).randrange(2, 2 * EPOCHS)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two ranks that train every method, and then another method until one rank is killed."""
    out = tmp_path_factory.mktemp("two")
    done = launch(
        out,
        methods=[*METHODS, "byol", "simo"],
        epochs=EPOCHS,
        more=DOUBLE,
        die=[f"1@{DEATH}"],
        spoil={"byol": 5},
    )
    return out, done


def curves(*runs):
    """Return the rows of each run without its speed."""
    kept = [
        [{k: v for k, v in row.items() if k != "images_per_second"} for row in run.metrics()]
        for run in runs
    ]
    assert [row.keys() for row in kept[0]] == [row.keys() for row in kept[1]]
    return kept


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_under_torchrun_train_like_one(two, method, tmp_path):
    """With the same global batch, losses, health and weights are equal in float64.

    They differ only by the order of sums.
    """
    out, done = two
    pretrain(tmp_path / method, method, EPOCHS, DOUBLE)
    one, other = curves(RunFolder(tmp_path / method), RunFolder(out / method))
    assert len(one) == 2 * EPOCHS, done.stderr
    for a, b in zip(one, other, strict=True):
        assert a == pytest.approx(b, rel=1e-9, abs=1e-11)
    single, shared = (last(path / method) for path in (tmp_path, out))
    assert single["learner"]["online.backbone.conv.weight"].dtype == torch.float64
    for name, value in single["learner"].items():
        assert torch.allclose(
            value.double(), shared["learner"][name].double(), rtol=1e-9, atol=1e-11
        ), name
    digests = [(out / method / f"rank-{rank}.digest").read_text() for rank in range(2)]
    assert digests[0] == digests[1]


def test_all_ranks_skip_a_step_that_is_not_finite_on_one_of_them(two, tmp_path, monkeypatch):
    """Only the loss of rank 1 is infinite; gradients are averaged, and finite on both ranks."""
    out, done = two
    rows = RunFolder(out / "byol").metrics()
    assert [row.get("skipped", 0) for row in rows] == [0] * 5 + [1] * 3, done.stderr
    digests = [(out / "byol" / f"rank-{rank}.digest").read_text() for rank in range(2)]
    assert digests[0] == digests[1]
    monkeypatch.setattr(Step, "_gradients", spoiled(Step._gradients, 5, rank=0))
    pretrain(tmp_path / "byol", "byol", EPOCHS, DOUBLE)
    single, shared = (last(path / "byol")["learner"] for path in (tmp_path, out))
    for name, value in single.items():
        assert torch.allclose(value.double(), shared[name].double(), rtol=1e-9, atol=1e-11), name


@pytest.mark.slow
def test_parts_of_a_batch_enter_a_queue_in_the_order_of_one_process(tmp_path):
    """The queue is smaller than the batch, so the order of the keys decides which of them stay."""
    more = DOUBLE | {"train.accumulate": 2, "method.queue": 12}
    done = launch(tmp_path / "two", methods=["mocov2"], epochs=3, more=more)
    pretrain(tmp_path / "one", "mocov2", 3, more)
    single, shared = last(tmp_path / "one"), last(tmp_path / "two" / "mocov2")
    assert done.returncode == 0, done.stderr
    for name, value in single["learner"].items():
        assert torch.allclose(
            value.double(), shared["learner"][name].double(), rtol=1e-9, atol=1e-11
        ), name


def test_a_rank_that_is_killed_ends_the_other_soon_and_with_a_sentence(two):
    out, done = two
    assert done.returncode != 0
    when, sentence = (out / "survivor-0").read_text().split(" ", 1)
    # torchrun itself would kill it after 30 seconds
    assert float(when) - float((out / "died").read_text()) < 25
    assert sentence.startswith(
        "rank 0 of 2 stops because another rank has ended or does not respond ("
    )
    resume = "run the same command again to resume from the last checkpoint"
    assert sentence.endswith(f"); {resume}")
    assert len(RunFolder(out / "simo").metrics()) == DEATH
    assert sentence.splitlines()[0] in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_torchrun_starts_again_from_the_last_checkpoint(tmp_path, overwrite):
    """Each rank is killed once. The second attempt resumes the first one, also with --overwrite."""
    chance = random.Random(7)
    epochs = 12
    options = {"train.checkpoint_every": 1}
    die = [f"1@{chance.randrange(4, 10)}", f"0@{chance.randrange(12, 18)}"]
    whole = launch(tmp_path / "whole", methods=["adco"], epochs=epochs, more=options)
    assert whole.returncode == 0, whole.stderr
    if overwrite:
        pretrain(tmp_path / "killed" / "adco", "adco", epochs, {"train.seed": 1})
    again = launch(
        tmp_path / "killed",
        "--max-restarts",
        "2",
        methods=["adco"],
        epochs=epochs,
        more=options,
        die=die,
        overwrite=overwrite,
    )
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "killed" / "died").exists() and (tmp_path / "killed" / "survivor-1").exists()
    assert equal(last(tmp_path / "whole" / "adco"), last(tmp_path / "killed" / "adco"))
    folders = [tmp_path / name / "adco" for name in ("whole", "killed")]
    digests = {
        (folder / f"rank-{rank}.digest").read_text() for folder in folders for rank in (0, 1)
    }
    assert len(digests) == 1
    undisturbed, resumed = curves(*map(RunFolder, folders))
    assert undisturbed == resumed


@pytest.mark.slow
def test_torchrun_gives_up_after_its_restarts_and_the_run_goes_on_later(tmp_path):
    dead = launch(
        tmp_path / "run", "--max-restarts", "1", methods=["mocov2"], epochs=3, die=["0@1", "0@1"]
    )
    assert dead.returncode != 0
    assert launch(tmp_path / "run", methods=["mocov2"], epochs=3).returncode == 0
    assert launch(tmp_path / "whole", methods=["mocov2"], epochs=3).returncode == 0
    assert equal(last(tmp_path / "whole" / "mocov2"), last(tmp_path / "run" / "mocov2"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
def test_ranks_whose_torchrun_was_killed_stop_and_the_run_goes_on(tmp_path):
    """They write a checkpoint before they end; until then no other process can use the folder."""
    epochs = 2000
    output = tmp_path / "output"
    with output.open("w") as file:
        child = subprocess.Popen(
            started(tmp_path / "run", methods=["mocov2"], epochs=epochs),
            env=environment(),
            stdout=file,
            stderr=file,
        )
    reached(tmp_path / "run" / "mocov2", 30, child, output)
    ranks = children(child.pid)
    child.kill()
    child.wait()
    assert len(ranks) == 2
    begun = time.monotonic()
    while any(map(alive, ranks)):
        assert time.monotonic() - begun < 60
        time.sleep(0.1)
    assert "stopped after step" in output.read_text()
    steps = RunFolder(tmp_path / "run" / "mocov2").metrics()[-1]["step"] + 1
    assert 30 <= steps < 2 * epochs and last(tmp_path / "run" / "mocov2")["step"] == steps
