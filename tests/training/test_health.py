"""Health checks: every measure is computed in a second way, every warning is triggered.

They have no effect on training.
"""

import itertools
import math
import re

import pytest
import torch

from antipode import functional as A
from antipode.core.negatives import Queue
from antipode.reporting.warnings import warnings as report_warnings
from antipode.runs.folder import RunFolder
from antipode.runs.run import Run
from antipode.training import health
from antipode.training import record as recording
from antipode.training.build import Setup
from antipode.training.loop import train
from antipode.training.record import InTrouble, Recorder, Unhealthy
from antipode.training.step import Step
from antipode.types import Output
from tests.toys import VARIANTS, Tiny, batch, make
from tests.toys import train as steps
from tests.training.runs import equal, last, small_recipe, small_splits


def row(out, step=0):
    """Return the metrics of an output as a row."""
    return {"step": step, **{name: float(value) for name, value in out.metrics.items()}}


def vectors(learner, b):
    """Return online vectors and keys (N,D) of each view as the networks output them."""
    if learner.joint:
        z = list(learner.online(torch.cat(b.views)).chunk(len(b.views)))
    else:
        z = [learner.online(view) for view in b.views]
    p = [x if learner.predictor is None else learner.predictor(x) for x in z]
    keys = [learner.twin.net(view) for view in b.views] if hasattr(learner.twin, "net") else z
    return p, keys


def cosine(x, y):
    return ((x * y).sum() / x.norm() / y.norm()).item()


@pytest.mark.parametrize("variant", ["simclr", "mocov2", "byol", "simsiam", "dclw"])
def test_alignment_is_the_mean_squared_distance_of_positives(double, variant):
    learner = make(variant, **({"groups": 1} if variant == "mocov2" else {}))
    steps(learner, 2)
    b = batch(2, step=5)
    p, k = vectors(learner, b)
    pairs = [(0, 1)] if variant == "mocov2" else [(0, 1), (1, 0)]
    expected = sum(A.alignment(p[i], k[j]).item() for i, j in pairs) / len(pairs)
    assert health.alignment(learner, row(learner(b))) == pytest.approx(expected, rel=1e-9)


def test_alignment_of_centroids_counts_that_they_are_shorter(double):
    learner = make("msbreg", renormalise=False)
    b = batch(4, step=5)
    p, k = ([x / x.norm(dim=1, keepdim=True) for x in side] for side in vectors(learner, b))
    first = ((p[0] + p[1] - k[2] - k[3]) / 2).square().sum(1).mean()
    second = ((p[2] + p[3] - k[0] - k[1]) / 2).square().sum(1).mean()
    alignment = health.alignment(learner, row(learner(b)))
    assert alignment == pytest.approx((first + second).item() / 2, rel=1e-9)


def naive_negative(learner, b):
    """Return the mean cosine of queries and negatives, by loops."""
    p, k = vectors(learner, b)
    queue = [
        vector for part in learner.modules() if isinstance(part, Queue) for vector in part.vectors
    ]
    bank = list(learner.objective.bank.weight) if hasattr(learner.objective, "bank") else []
    cosines = []
    for query, key in [(0, 1), (1, 0)] if learner.joint else [(0, 1)]:
        for i, q in enumerate(p[query]):
            in_batch = [
                k[view][j]
                for view in ((0, 1) if learner.joint else (key,))
                for j in range(len(b.image_ids))
                if j != i
            ]
            cosines += [cosine(q, other) for other in (queue or [*in_batch, *bank])]
    return sum(cosines) / len(cosines)


@pytest.mark.parametrize(
    "variant", ["simclr", "dcl", "dclw", "mocov2", "dcl-mocov2", "adco", "invspread", "eqco"]
)
def test_the_negative_similarity_is_the_mean_cosine_with_what_repels(double, variant):
    grouped = variant in ("mocov2", "dcl-mocov2", "adco", "eqco")
    learner = make(variant, **({"groups": 1} if grouped else {}))
    steps(learner, 3)  # a bank of 12 is full after 2
    b = batch(2, step=5)
    assert float(learner(b).metrics["negative"]) == pytest.approx(
        naive_negative(learner, b), rel=1e-8, abs=1e-12
    )


def test_npids_negatives_are_the_memory_of_all_other_images(double):
    learner = make("npid")
    b = batch(1, step=5)
    (z,), _ = vectors(learner, b)
    memory = learner.objective.negatives[0].vectors
    cosines = [cosine(q, memory[j]) for i, q in enumerate(z) for j in range(len(memory)) if j != i]
    expected = sum(cosines) / len(cosines)
    assert float(learner(b).metrics["negative"]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_contrast_tells_positive_and_negative_similarity(variant):
    learner = make(variant)
    metrics = learner(batch(learner.views)).metrics
    assert -1 <= metrics["positive"] <= 1.0001
    assert ("negative" in metrics) == ("contrast" in metrics)
    assert ("multiplier" in metrics) == ("contrast" in metrics and variant != "npid-nce")
    if "negative" in metrics:
        assert abs(metrics["negative"]) <= 1.0001


def test_the_multiplier_is_the_mean_q_b(double):
    learner = make("simclr")
    b = batch(2)
    (z0, z1), _ = vectors(learner, b)
    expected = A.npc_multiplier(z0, z1, tau=0.1).mean()
    assert torch.allclose(learner(b).metrics["multiplier"], expected)


@pytest.mark.parametrize(
    ("size", "images", "end"), [(20, 8, 7), (20, 20, 3), (5, 8, 4), (100, 8, 9), (24, 8, 6)]
)
def test_the_age_of_a_queue_is_that_of_its_keys(size, images, end):
    """Keys hold the number of their step; the initial random vectors hold -1 and do not count."""
    learner = make("mocov2", queue=size, dim=2)
    queue = learner.objective.negatives[0]
    queue.vectors.fill_(-1)
    for step in range(end):
        steps_of_keys = queue.vectors[queue.vectors[:, 0] >= 0][:, 0]
        expected = float((step - steps_of_keys).mean()) if len(steps_of_keys) else None
        assert health.age(learner, images, step) == (expected and pytest.approx(expected))
        queue.push(
            torch.full((images, 2), float(step)), torch.arange(images), lambda: torch.tensor(0)
        )
    assert health.age(make("simclr"), images, 5) is None


def test_the_drift_of_a_bank_is_measured_from_check_to_check():
    learner = make("adco", dim=2)
    watch = health.HealthMonitor()
    bank = learner.objective.bank
    assert watch.drift(learner) is None and watch.bank is None  # still filling
    steps(learner, 3)
    assert watch.drift(learner) is None  # the first check
    angles = torch.linspace(0, 1, len(bank.weight))
    with torch.no_grad():
        x, y = bank.weight.clone().unbind(1)
        turned = torch.stack(
            [x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos()], 1
        )
        bank.weight.copy_(turned * 3)  # lengths do not matter
    kept = bank.weight.clone()
    assert watch.drift(learner) == pytest.approx(float((1 - angles.cos()).mean()), abs=1e-6)
    assert watch.drift(learner) == pytest.approx(0, abs=1e-6) and torch.equal(bank.weight, kept)
    assert watch.drift(make("simclr")) is None


def test_the_similarity_is_the_mean_cosine_of_different_keys(double):
    """The keys are few and of different lengths, so that pairs of a key with itself would show."""
    keys = torch.randn(5, 3) * torch.tensor([0.1, 1.0, 2.0, 5.0, 9.0])[:, None]
    cosines = [cosine(keys[i], keys[j]) for i in range(5) for j in range(5) if i != j]
    similarity = health.measure(make("simclr"), keys)["similarity"]
    assert similarity == pytest.approx(sum(cosines) / 20, rel=1e-12)


def test_the_similarity_of_orthogonal_keys_is_zero_and_of_opposite_keys_minus_one():
    learner = make("simclr")
    assert health.measure(learner, 3 * torch.eye(4))["similarity"] == pytest.approx(0, abs=1e-7)
    opposite = torch.tensor([[2.0, 1.0], [-4.0, -2.0]])
    assert health.measure(learner, opposite)["similarity"] == pytest.approx(-1, abs=1e-6)


def test_a_large_batch_is_judged_by_a_part_of_it():
    keys = torch.arange(3 * health.ENOUGH + 1.0)[:, None]
    part = health.subsample(keys)
    assert len(part) <= health.ENOUGH and part[1] == 4
    assert torch.equal(health.subsample(keys[:9]), keys[:9])


@pytest.mark.parametrize(("size", "images"), [(20, 8), (24, 8), (25, 8), (5, 8), (23, 7)])
def test_a_run_settles_an_epoch_after_the_last_random_vector_has_left_the_queue(size, images):
    queue = make("mocov2", queue=size, dim=2).objective.negatives[0]
    queue.vectors.fill_(-1)
    pushes = 0
    while (queue.vectors < 0).any():
        queue.push(torch.ones(images, 2), torch.arange(images), lambda: torch.tensor(0))
        pushes += 1
    assert health.settling(size, images, 300) == 300 + pushes


def test_the_epoch_of_settling_has_at_least_100_and_at_most_1000_steps():
    lengths = {1: 100, 100: 100, 101: 101, 1000: 1000, 1001: 1000}
    assert {steps: health.settling(0, 8, steps) for steps in lengths} == lengths
    assert health.settling(20, 8, 5) == 103  # two and a half batches fill the queue


# Recording and checkpoints


def go(recipe, path, **options):
    torch.manual_seed(5)
    train(recipe, RunFolder(path), splits=small_splits(), backbone=Tiny(), quiet=True, **options)
    return last(path)


def steps_with(name, rows):
    """Return the steps whose row contains a metric."""
    return [row["step"] for row in rows if name in row]


@pytest.mark.parametrize("method", ["adco", "mocov2", "byol"])
def test_health_changes_no_bit_of_training_and_comes_when_it_is_due(method, tmp_path):
    often = go(small_recipe(method, **{"monitor.health_every": 3}), tmp_path / "often")
    never = go(small_recipe(method, **{"monitor.health_every": 0}), tmp_path / "never")
    assert all(equal(often[part], never[part]) for part in ("learner", "optim", "torch"))
    rows = RunFolder(tmp_path / "often").metrics()
    later = [3, 6, 9]
    assert steps_with("rank", rows) == steps_with("alignment", rows) == [0, *later]
    assert steps_with("bank_drift", rows) == (later if method == "adco" else [])
    assert steps_with("queue_age", rows) == (later if method == "mocov2" else [])


def test_the_drift_survives_a_stop_between_two_checks(tmp_path, monkeypatch):
    """The first check after the stop compares the bank with the last check before it."""
    recipe = small_recipe("adco", **{"monitor.health_every": 3})
    go(recipe, tmp_path / "whole")
    run = Setup.run

    def short(self, start):
        for taken in run(self, start):
            yield taken
            if taken[0] == 4 and start == 0:
                raise KeyboardInterrupt

    monkeypatch.setattr(Setup, "run", short)
    with pytest.raises(KeyboardInterrupt):
        go(
            small_recipe("adco", **{"monitor.health_every": 3, "train.checkpoint_every": 2}),
            tmp_path / "halves",
        )
    go(recipe, tmp_path / "halves")
    folders = [tmp_path / "whole", tmp_path / "halves"]
    whole, halves = (
        [{k: v for k, v in row.items() if k != "images_per_second"} for row in rows]
        for rows in (RunFolder(folder).metrics() for folder in folders)
    )
    assert whole == halves and equal(*map(last, folders))


# Warnings


def contrast(values):
    """Return all kinds of trouble and the last trouble, for contrasts that are ten steps apart."""
    watch = health.HealthMonitor()
    troubles = []
    for number, value in enumerate(values):
        numbers = {"step": 10 * number, "loss": 0.0, "contrast": value}
        watch.note(numbers)
        troubles.append(watch.trouble(numbers, 128))
    return [trouble and trouble.kind for trouble in troubles], troubles[-1]


def test_a_loss_that_loses_what_it_had_gained_diverges():
    fall = [6 - 0.1 * i for i in range(41)]
    rise = [2 + 0.2 * i for i in range(20)] + [6.0] * 20
    kinds, trouble = contrast([6.0] * 10 + fall + rise)
    assert trouble.kind == "diverged" and not any(kinds[: 10 + 41 + 15])
    sentence = r"the contrast has risen to 5\.\d at step 900, from a minimum of 2\.\d+: "
    sentence += r"training diverges, the learning rate is likely too high or the warm-up too short"
    assert re.fullmatch(sentence, trouble.sentence)


@pytest.mark.parametrize(
    ("start", "level", "diverges"),
    [
        (12.0, 11.0, False),  # fell by 10 and rose by 9, which is 0.9 of it
        (12.0, 11.01, True),
        (2.5, 3.0, False),  # fell by 0.5 and rose by 1
        (2.5, 3.01, True),
    ],
)
def test_a_loss_may_rise_by_one_and_by_nine_tenths_of_its_fall(start, level, diverges):
    """It diverges if it rises by more than both; the lowest value is 2."""
    watch = health.HealthMonitor()
    watch.load({"rows": 20, "start": start, "level": level, "lowest": 2.0})
    trouble = watch.trouble({"step": 300, "loss": 0.0, "contrast": level}, 128)
    assert (trouble and trouble.kind) == ("diverged" if diverges else None)


def test_the_trend_of_the_loss_begins_in_the_step_in_which_a_run_has_settled():
    watch = health.HealthMonitor(settling=130)
    for step, value in ((129, 9.0), (130, 4.0), (131, 3.0)):
        watch.note({"step": step, "loss": 0.0, "contrast": value})
    assert (watch.rows, watch.start, watch.level, watch.lowest) == (2, 4.0, 3.5, 3.5)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"spread": 0.1}, None),
        ({"spread": 0.0999}, "collapsed"),
        ({"spread": 0.0999, "step": 129}, None),
        ({"spread": 0.0999, "step": 130}, "collapsed"),
        ({"rank": 2.57}, None),  # 0.02 of 128 is 2.56
        ({"rank": 2.55}, "narrow"),
        ({"rank": 1.5, "limit": 16}, None),
        ({"rank": 1.49, "limit": 16}, "narrow"),
        ({"rank": 1.5, "limit": 128}, "narrow"),
    ],
)
def test_collapsed_and_narrow_begin_below_their_thresholds_once_a_run_has_settled(changes, kind):
    row = {"step": 300, "loss": 1.0, "spread": 0.9, "rank": 90.0} | changes
    trouble = health.complaint(row, row.pop("limit", 128), 130)
    assert (trouble and trouble.kind) == kind


@pytest.mark.parametrize(
    ("drift", "span", "step", "idle"),
    [
        (9.9e-5, 50, 300, True),
        (1e-4, 50, 300, False),
        (9.9e-5, 49, 300, False),
        (9.9e-5, 50, 130, True),
        (9.9e-5, 50, 129, False),
    ],
)
def test_a_bank_is_idle_below_a_drift_of_1e_4_in_50_steps_of_a_settled_run(drift, span, step, idle):
    watch = health.HealthMonitor(settling=130)
    row = {"loss": 0.0, "contrast": 3.0, "bank_drift": drift}
    watch.note(row | {"step": step - span})
    watch.note(row | {"step": step})
    assert (watch.trouble(row | {"step": step}, 128) is not None) is idle


@pytest.mark.parametrize(
    "values",
    [
        [2.0, 3.0, 4.0, 4.8]
        + [4.8 - 0.01 * i for i in range(200)],  # keys replace a queue's random start
        [6 - 0.1 * min(i, 40) + 0.3 * (-1) ** i for i in range(200)],  # noise
        [6 - 0.1 * min(i, 40) + (3.0 if i == 100 else 0) for i in range(200)],  # one bad batch
        [0.5 + 0.004 * i for i in range(200)],  # JCL's ramp
        [3.0] * 200,
    ],
)
def test_what_rises_a_little_or_for_good_reasons_does_not(values):
    assert not any(contrast(values)[0])


def test_methods_without_negatives_are_followed_by_their_positives():
    assert health.followed({"loss": -0.3, "positive": 0.25}) == (
        "squared distance of positives",
        1.5,
    )
    assert health.followed({"loss": -0.3, "positive": 0.25, "contrast": 2.0}) == ("contrast", 2.0)


@pytest.mark.parametrize(
    ("drift", "every", "idle"),
    [(1e-2, 100, False), (1e-5, 100, True), (0.0, 500, True), (0.0, 20, False)],
)
def test_a_bank_that_stands_still_is_told_of_and_no_reason_to_stop(drift, every, idle):
    watch = health.HealthMonitor()
    for step in range(0, 1001, every):
        row = {"step": step, "loss": 0.0, "contrast": 3.0, "bank_drift": drift}
        watch.note(row)
    trouble = watch.trouble(row, 128)
    assert bool(trouble) is idle
    if idle:
        assert trouble.kind == "idle" and not trouble.fatal
        assert "have stopped moving at step 1000" in trouble.sentence
        assert "method.tau_bank" in trouble.sentence
        resumed = health.HealthMonitor()
        resumed.load(watch.state())
        assert resumed.trouble(row, 128) == trouble
    assert watch.trouble({"step": 1000, "loss": 0.0, "contrast": 3.0}, 128) is None


def fabricated(kind):
    """Return a `Setup.run` whose steps have one kind of trouble from step 150 on."""
    even = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))

    def at(step):
        late = step >= 150
        loss = 4 - 0.02 * min(step, 150)
        loss += 0.1 * (step - 150) if kind == "diverged" and late else 0
        point = torch.ones_like(even) + 1e-4 * even
        line = even[:, :1] * torch.ones(16) + 1e-3 * even
        keys = {"collapsed": point, "narrow": line}.get(kind, even) if late else even
        metrics = {
            "contrast": torch.tensor(loss),
            "positive": torch.tensor(0.5),
            "loss": torch.tensor(loss),
        }
        return Output(metrics["loss"], metrics, keys, torch.arange(64))

    def run(self, start):
        for step in range(start, self.loader.total):
            yield step, step // 2, {}, at(step), torch.tensor(1.0)

    return run


def unhealthy(caught):
    """Return the warnings of the health checks."""
    return [warning for warning in caught if warning.category is Unhealthy]


WORDS = {
    "collapsed": r"the embeddings have collapsed at step 150 \(spread 0.000 of 1\): "
    "likely causes are a missing predictor, stop-gradient or batch norm, or too high a learning",
    "narrow": r"the embeddings use only 1\.\d of 16 dimensions at step 150: "
    "the temperature or the learning rate is likely out of range",
    "diverged": "the contrast has risen to .*, from a minimum of .*: training diverges",
}


@pytest.mark.parametrize("kind", WORDS)
def test_every_complaint_fires_once_and_ends_the_run_where_that_was_asked(
    kind, tmp_path, monkeypatch
):
    monkeypatch.setattr(Setup, "run", fabricated(kind))
    often = {"monitor.health_every": 50}
    with pytest.warns(Unhealthy, match=WORDS[kind]) as caught:
        go(small_recipe("simclr", 125, **often), tmp_path / "warned")
    assert len(unhealthy(caught)) == 1
    assert RunFolder(tmp_path / "warned").metrics()[-1]["step"] == 249
    with pytest.raises(InTrouble, match=WORDS[kind] + ".*; stopped because train.on_collapse=stop"):
        go(
            small_recipe("simclr", 125, **often, **{"train.on_collapse": "stop"}),
            tmp_path / "stopped",
        )
    assert 150 <= RunFolder(tmp_path / "stopped").metrics()[-1]["step"] < 230


def test_what_was_measured_while_settling_is_not_held_against_a_run_later(
    tmp_path, monkeypatch, recwarn
):
    """The run settles at step 100, between the checks at 90 and 180; from 91 on it is healthy."""
    even = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))

    def run(self, start):
        for step in range(start, self.loader.total):
            keys = even if step > 90 else torch.ones_like(even) + 1e-4 * even
            numbers = {name: torch.tensor(1.0) for name in ("contrast", "positive", "loss")}
            out = Output(numbers["loss"], numbers, keys, torch.arange(64))
            yield step, step // 2, {}, out, torch.tensor(1.0)

    monkeypatch.setattr(Setup, "run", run)
    go(
        small_recipe("simclr", 125, **{"monitor.health_every": 90, "train.on_collapse": "stop"}),
        tmp_path,
    )
    rows = RunFolder(tmp_path).metrics()
    assert rows[90]["spread"] < 0.1 and rows[180]["spread"] > 0.5
    assert not unhealthy(recwarn)
    assert not {"collapsed", "narrow"} & report_warnings(Run(tmp_path)).keys()


def test_checks_come_between_two_lines_of_the_log_too(tmp_path):
    go(small_recipe("byol", **{"monitor.health_every": 3, "monitor.log_every": 2}), tmp_path)
    rows = RunFolder(tmp_path).metrics()
    assert [row["step"] for row in rows] == [0, 2, 3, 4, 6, 8, 9]
    assert steps_with("rank", rows) == [0, 3, 6, 9]


def test_the_time_of_the_monitor_is_no_time_of_training(tmp_path, monkeypatch):
    """By a fake clock every step of 16 images takes one second, and the monitor takes 100."""
    now = [0.0]
    monkeypatch.setattr(recording.time, "perf_counter", lambda: now[0])
    plain = Recorder.note

    def note(self, *step):
        now[0] += 1
        plain(self, *step)

    def monitor(learner, epoch):
        now[0] += 100
        return {"knn": 1.0}

    monkeypatch.setattr(Recorder, "note", note)
    values = {"monitor.log_every": 3, "monitor.knn_every": 1, "monitor.health_every": 0}
    go(small_recipe("byol", **values), tmp_path, monitor=monitor)
    rows = RunFolder(tmp_path).metrics()
    assert [row["images_per_second"] for row in rows] == pytest.approx([16.0] * len(rows))
    # there is one row per step, which contains the score if there is one
    assert [row["step"] for row in rows] == [0, 1, 3, 5, 6, 7, 9]
    assert steps_with("knn", rows) == [1, 3, 5, 7, 9]


def test_scores_are_tracked_at_the_end_of_every_so_many_epochs(tmp_path):
    """There are five epochs of two steps."""
    recipe = small_recipe("byol", **{"monitor.knn_every": 2, "monitor.health_every": 0})
    go(recipe, tmp_path, monitor=lambda learner, epoch: {"knn": float(epoch)})
    rows = RunFolder(tmp_path).metrics()
    assert [(row["step"], row["knn"]) for row in rows if "knn" in row] == [(3, 1.0), (7, 3.0)]


@pytest.mark.parametrize(
    ("parts", "of", "negatives"), [(1, "part", 30), (4, "part", 6), (4, "batch", 30)]
)
def test_the_bound_counts_the_negatives_of_the_loss(tmp_path, parts, of, negatives):
    """With accumulation they are the other images of a part, or those of the whole batch."""
    values = {"train.accumulate": parts, "train.negatives": of, "monitor.health_every": 1}
    go(small_recipe("simclr", 1, **values), tmp_path)
    for row in RunFolder(tmp_path).metrics():
        assert row["mi_bound"] + row["contrast"] == pytest.approx(math.log1p(negatives))


def test_a_healthy_run_is_not_complained_of(tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(Setup, "run", fabricated("nothing"))
    go(
        small_recipe("simclr", 125, **{"monitor.health_every": 50, "train.on_collapse": "stop"}),
        tmp_path,
    )
    assert not unhealthy(recwarn)


REAL = {
    "loss or gradient were not finite in the last 20 steps up to step": (
        "simclr",
        {"optim.network.lr": 1e38, "optim.network.warmup": 0},
    ),
    "the embeddings have collapsed": (
        "custom",
        {"method.negatives": "none", "optim.network.lr": 1.0},
    ),
}


@pytest.mark.parametrize("words", REAL)
def test_a_run_that_really_goes_wrong_is_ended(words, tmp_path):
    """The learning rate is too high, or two views of one network attract without any negatives."""
    method, wrong = REAL[words]
    recipe = small_recipe(
        method, 100, **wrong, **{"monitor.health_every": 20, "train.on_collapse": "stop"}
    )
    with pytest.raises(InTrouble, match=words):
        go(recipe, tmp_path)
    assert math.isfinite(RunFolder(tmp_path).metrics()[0]["loss"])


def test_no_checkpoint_is_written_of_a_network_that_collapses_between_two_checks(
    tmp_path, monkeypatch
):
    """With on_collapse=stop, the embeddings are checked before each checkpoint, too."""
    monkeypatch.setattr(Setup, "run", fabricated("collapsed"))
    values = {"monitor.health_every": 1000, "train.checkpoint_steps": 7, "monitor.log_every": 50}
    with pytest.raises(InTrouble, match="collapsed at step 153"):
        go(small_recipe("simclr", 125, **values, **{"train.on_collapse": "stop"}), tmp_path)
    assert last(tmp_path)["step"] == 147


# Steps that are skipped


def spoil(monkeypatch, bad):
    """Make the loss of some steps NaN."""
    gradients = Step._gradients

    def spoiled(self, batch):
        out, norms = gradients(self, batch)
        if int(self.learner.step) in bad:
            out = out._replace(loss=out.loss * math.nan)
            out.metrics["loss"] = out.loss
        return out, norms

    monkeypatch.setattr(Step, "_gradients", spoiled)


@pytest.mark.parametrize(
    ("log_every", "bad", "end"),
    [
        (1, range(3, 22), None),  # 19 in a row
        (1, range(3, 23), 23),
        (1, [step for step in range(90) if step % 20], None),  # 19 in a row, again and again
        (5, range(3, 99), 26),  # step 25 is logged, and 23 steps were skipped
        (30, range(3, 99), 61),  # at step 30 there are 28, and not all steps of an interval
    ],
)
def test_twenty_skipped_steps_in_a_row_and_all_of_an_interval_end_a_run(
    log_every, bad, end, tmp_path, monkeypatch, recwarn
):
    spoil(monkeypatch, bad)
    recipe = small_recipe("simclr", 50, **{"monitor.log_every": log_every})
    if end is None:
        go(recipe, tmp_path)
        assert RunFolder(tmp_path).metrics()[-1]["skipped"] == len(bad)
    else:
        with pytest.raises(InTrouble, match=f"steps up to step {end}, so training cannot continue"):
            go(recipe, tmp_path)
    counts = [int(re.match(r"\d+", str(one.message))[0]) for one in unhealthy(recwarn)]
    # reported at first, and each time that their number has doubled
    assert all(b >= 2 * a for a, b in itertools.pairwise(counts))


def test_no_checkpoint_is_due_after_a_skipped_step_and_the_next_one_is_written(
    tmp_path, monkeypatch, recwarn
):
    spoil(monkeypatch, [3, 5])
    values = {"train.checkpoint_steps": 2, "train.keep": 9, "train.checkpoint_every": 99}
    go(small_recipe("mocov2", 4, **values), tmp_path)
    steps = [int(file.stem[5:]) for file in (tmp_path / "checkpoints").glob("step-*.pt")]
    assert sorted(steps) == [2, 8]
    assert last(tmp_path)["skipped"] == 2


def test_the_count_of_skipped_steps_survives_a_stop(tmp_path, monkeypatch, recwarn):
    spoil(monkeypatch, [1, 6])
    run = Setup.run

    def short(self, start):
        for taken in run(self, start):
            yield taken
            if taken[0] == 4 and start == 0:
                raise KeyboardInterrupt

    recipe = small_recipe("mocov2", **{"train.checkpoint_every": 1})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Setup, "run", short)
        go(recipe, tmp_path / "halves")
    go(recipe, tmp_path / "halves")
    go(recipe, tmp_path / "whole")
    counts = [row.get("skipped", 0) for row in RunFolder(tmp_path / "halves").metrics()]
    assert counts == [0, 1, 1, 1, 1, 1, 2, 2, 2, 2]
    assert equal(last(tmp_path / "whole"), last(tmp_path / "halves"))
