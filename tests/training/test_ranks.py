"""Several ranks: they train as one, end together, and start again where they were."""

import random
import subprocess
import sys
import time

import pytest
import torch

from antipode.runs.folder import RunFolder
from tests.training.runs import (
    alive,
    children,
    environment,
    equal,
    last,
    launch,
    pretrain,
    reached,
    started,
)

pytestmark = [pytest.mark.dist, pytest.mark.xdist_group("ranks")]

EPOCHS = 12  # of two steps
METHODS = ["simclr", "mocov2", "adco", "dclw", "msbreg"]
DOUBLE = {"train.precision": "fp64"}
DEATH = random.Random(3).randrange(2, 2 * EPOCHS)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two ranks that train every method, then another one until one of them is killed."""
    out = tmp_path_factory.mktemp("two")
    done = launch(out, methods=[*METHODS, "simo"], epochs=EPOCHS, more=DOUBLE, die=[f"1@{DEATH}"])
    return out, done


def curves(*runs):
    """Everything that a run records but its speed: rows of numbers for each run."""
    kept = [
        [{k: v for k, v in row.items() if k != "images_per_second"} for row in run.metrics()]
        for run in runs
    ]
    assert [row.keys() for row in kept[0]] == [row.keys() for row in kept[1]]
    return kept


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_under_torchrun_train_like_one(two, method, tmp_path):
    """The same global batch: the same losses, health and weights, up to sums in another order, in float64."""
    out, done = two
    pretrain(tmp_path / method, method, EPOCHS, DOUBLE)
    one, other = curves(RunFolder(tmp_path / method), RunFolder(out / method))
    assert len(one) == 24, done.stderr
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


def test_parts_of_a_batch_enter_a_queue_in_the_order_of_one_process(tmp_path):
    """A queue smaller than the batch, which no batch divides: which keys stay in it hangs on their order."""
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
    assert (
        float(when) - float((out / "died").read_text()) < 25
    )  # torchrun itself would kill it after 30
    assert sentence.startswith(
        "rank 0 of 2 ends because another one has ended or does not answer ("
    )
    assert sentence.endswith("); the same command goes on from the last checkpoint")
    assert (
        len(RunFolder(out / "simo").metrics()) == DEATH and sentence.splitlines()[0] in done.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_torchrun_starts_again_from_the_last_checkpoint(tmp_path, overwrite):
    """Either rank is killed once; with --overwrite too the second attempt goes on with the first's run."""
    chance, options = random.Random(7), {"train.checkpoint_every": 1}
    die = [f"1@{chance.randrange(4, 10)}", f"0@{chance.randrange(12, 18)}"]
    whole = launch(tmp_path / "whole", methods=["adco"], epochs=EPOCHS, more=options)
    assert whole.returncode == 0, whole.stderr
    if overwrite:
        pretrain(tmp_path / "killed" / "adco", "adco", EPOCHS, {"train.seed": 1})
    again = launch(
        *(tmp_path / "killed", "--max-restarts", "2"),
        **{
            "methods": ["adco"],
            "epochs": EPOCHS,
            "more": options,
            "die": die,
            "overwrite": overwrite,
        },
    )
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "killed" / "died").exists() and (tmp_path / "killed" / "survivor-1").exists()
    assert equal(last(tmp_path / "whole" / "adco"), last(tmp_path / "killed" / "adco"))
    digests = {(tmp_path / name / "adco" / f"rank-{rank}.digest").read_text() for name in ("whole", "killed")
               for rank in (0, 1)}  # fmt: skip
    assert len(digests) == 1
    one, other = curves(
        RunFolder(tmp_path / "whole" / "adco"), RunFolder(tmp_path / "killed" / "adco")
    )
    assert one == other


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
    """They write a checkpoint; meanwhile nobody else trains in the folder."""
    epochs, output = 2000, tmp_path / "said"
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
