"""Tests of linear evaluation: a naive loop, learning rates, and the unchanged backbone."""

import math
import warnings
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from antipode import rng
from antipode.data.loader import Loader
from antipode.data.sources.catalog import load
from antipode.data.sources.source import Decoded, Memory
from antipode.data.views.operation import Crop, Standardise
from antipode.data.views.views import views
from antipode.evaluation import classifier, finetune, linear, semi
from antipode.evaluation.classifier import Heads, augmented, embed, judge
from antipode.evaluation.linear import Linear, chosen, run, trained
from antipode.evaluation.protocol import protocols
from antipode.schedule import scaled
from tests.evaluation.classes import CPU, Levels, Net, bright, brightness, task

LINEAR = {  # the settings of every protocol that trains a linear classifier with SGD or LARS
    name: protocol.run.keywords["settings"]
    for name, protocol in protocols().items()
    if name.startswith("linear") and name != "linear-fast"
}
QUICK = Linear(about="", rates=(1.0,), batch=16, epochs=6, at=(4,))


# The loop


def naive(task, settings, rate_at):
    """Train nn.Linear with torch.optim.SGD on centre crops, in the order of the loader.

    `rate_at(epoch, step, n)` is the learning rate at a step of an epoch of n steps.
    """
    source = task.splits.train
    batch = settings.batch
    x = Levels(0.1)(((source.images / 255) - 0.5) / 0.25)
    fc = nn.Linear(x.shape[1], 4)
    start = torch.randn(4, x.shape[1], generator=rng.generator(task.seed, "classifier"))
    fc.weight.data, fc.bias.data = settings.std * start, torch.zeros(4)
    sgd = torch.optim.SGD(
        fc.parameters(),
        1.0,
        settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
    )
    n = len(x) // batch
    for epoch in range(settings.epochs):
        order = rng.permutation(rng.key(task.seed, "order", epoch), len(x))
        for i in range(n):
            ids = order[i * batch : (i + 1) * batch]
            sgd.param_groups[0]["lr"] = rate_at(epoch, i, n)
            sgd.zero_grad()
            nn.functional.cross_entropy(fc(x[ids]), source.labels[ids]).backward()
            if settings.optimiser == "lars":
                for p in fc.parameters():  # apex LARC without clip, trust .001
                    if p.norm() > 0 and p.grad.norm() > 0:
                        p.grad *= 0.001 * p.norm() / (p.grad.norm() + 1e-8)
            sgd.step()
    return fc


LOOPS = {
    "steps": (QUICK, lambda e, i, n: 1.0 if e < 4 else 0.1),
    "high": (replace(QUICK, rates=(30.0,)), lambda e, i, n: 30.0 if e < 4 else 3.0),
    "nesterov, decay, cosine per step, from zero": (
        replace(
            QUICK,
            nesterov=True,
            weight_decay=0.01,
            schedule="cosine",
            at=(),
            per="step",
            rule="linear",
            std=0.0,
        ),
        lambda e, i, n: 16 / 256 * (1 + math.cos(math.pi * (e * n + i) / (6 * n))) / 2,
    ),
    "cosine per epoch to a floor": (
        replace(QUICK, schedule="cosine", at=(), floor=0.1),
        lambda e, i, n: 0.1 + 0.9 * (1 + math.cos(math.pi * e / 6)) / 2,
    ),
    "lars": (
        replace(QUICK, rates=(20.0,), optimiser="lars"),
        lambda e, i, n: 20.0 if e < 4 else 2.0,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_the_classifier_is_that_of_a_naive_loop(name, monkeypatch):
    settings, rate_at = LOOPS[name]
    monkeypatch.setattr(classifier, "augmented", lambda eval_view: eval_view)
    # with longer features, a learning rate of 30 would magnify rounding errors
    made = task(backbone=Levels(0.1))
    heads = trained(made, settings, made.splits.train, settings.rates)
    fc = naive(made, settings, rate_at)
    start = Heads(1, 4, 24, std=settings.std, seed=0)
    assert (heads.weights[0] - start.weights[0]).abs().max() > 0.01  # it has been trained
    torch.testing.assert_close(heads.weights[0], fc.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(heads.biases[0], fc.bias, rtol=1e-4, atol=1e-5)


def test_crops_are_what_it_trains_on(monkeypatch):
    made = task()
    with_crops = trained(made, QUICK, made.splits.train, (1.0,))
    monkeypatch.setattr(classifier, "augmented", lambda eval_view: eval_view)
    assert not torch.equal(
        with_crops.weights[0], trained(made, QUICK, made.splits.train, (1.0,)).weights[0]
    )


@pytest.mark.parametrize("optimiser", ["sgd", "lars"])
def test_rates_side_by_side_are_rates_one_after_the_other(optimiser):
    made, rates = task(backbone=Net()), (0.05, 1.0, 7.0)
    settings = replace(QUICK, optimiser=optimiser, nesterov=True, weight_decay=1e-3)
    together = trained(made, settings, made.splits.train, rates)
    for place, rate in enumerate(rates):
        alone = trained(made, settings, made.splits.train, (rate,))
        torch.testing.assert_close(together.weights[place], alone.weights[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(together.biases[place], alone.biases[0], rtol=1e-6, atol=1e-6)
    assert (together.weights[0] - together.weights[1]).abs().max() > 1e-3


# Rates


def tenfold(*marks):
    return lambda epoch, i, n: 0.1 ** sum(epoch >= mark for mark in marks)


def half_cosine(epochs):
    return lambda epoch, i, n: (1 + math.cos(math.pi * (epoch + i / n) / epochs)) / 2


# name -> learning rate at the start, its factor at (epoch, step, n), epochs and batch size, from
# the table of the specification
RATES = {
    "linear": (30, tenfold(60, 80), 100, 256),
    "linear-simo": (30, tenfold(60, 80), 90, 256),
    "linear-eqco-simclr": (0.1, tenfold(60, 80), 90, 256),
    "linear-jcl": (10, tenfold(60, 80), 100, 256),
    "linear-adco": (
        10,
        lambda e, i, n: (0.01 + 9.99 * (1 + math.cos(math.pi * e / 100)) / 2) / 10,
        100,
        256,
    ),
    "linear-simclr": (1.6, half_cosine(90), 90, 4096),
    "linear-byol": (1.6, half_cosine(80), 80, 1024),
    "linear-simsiam": (1.6, lambda e, i, n: (1 + math.cos(math.pi * e / 90)) / 2, 90, 4096),
    "linear-msbreg": (0.8, tenfold(480, 500), 520, 2048),
    "linear-places205": (0.2, tenfold(9, 19), 28, 256),
    "linear-inat18": (0.2, tenfold(28, 56), 84, 256),
    "linear-adco-places205": (5, half_cosine(12), 100, 256),
}


def test_every_linear_protocol_has_its_rates_here():
    assert set(LINEAR) == set(RATES)


@pytest.mark.parametrize("name", LINEAR)
def test_rates_are_the_tables_at_every_epoch(name):
    start, course, epochs, batch = RATES[name]
    settings = LINEAR[name]
    factors, n = settings.factors(), 7
    assert (settings.epochs, settings.batch) == (epochs, batch)
    for epoch in range(epochs):
        for i in (0, 3, 6):
            rate = scaled(settings.rates[0], settings.rule, batch) * factors(epoch * n + i, n)
            assert rate == pytest.approx(start * course(epoch, i, n), rel=1e-9, abs=1e-12), (
                epoch,
                i,
            )


def test_the_oscillating_rate_is_torchs_cosine_annealing_stepped_beyond_its_end():
    sgd = torch.optim.SGD([torch.zeros(1)], 5.0)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 12)
    factors = LINEAR["linear-adco-places205"].factors()
    rates = []
    for epoch in range(100):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            annealing.step(epoch + 1 / 4)
        rates.append(sgd.param_groups[0]["lr"])
        assert 5 * factors(4 * epoch + 1, 4) == pytest.approx(rates[-1], abs=1e-9)
    assert sum(later > earlier for earlier, later in pairwise(rates)) > 40  # it does rise again


def test_settings_that_differ_between_protocols():
    nesterov = {name for name, settings in LINEAR.items() if settings.nesterov}
    assert nesterov == {"linear-simclr", "linear-byol"}
    assert {name for name, settings in LINEAR.items() if settings.optimiser == "lars"} == {
        "linear-simsiam"
    }
    decays = {
        name: settings.weight_decay for name, settings in LINEAR.items() if settings.weight_decay
    }
    small, large = ("linear-simclr", "linear-eqco-simclr"), ("linear-places205", "linear-inat18")
    assert decays == dict.fromkeys(small, 1e-6) | dict.fromkeys(large, 1e-4)


def test_a_set_smaller_than_the_batch_is_one_batch_at_the_rate_of_its_rule():
    result = run(task(), replace(LINEAR["linear-simclr"], epochs=1))
    assert (result.settings["batch"], result.settings["rate"]) == (64, 0.1 * 64 / 256)
    result = run(task(), replace(LINEAR["linear"], epochs=1))
    assert (result.settings["batch"], result.settings["rate"]) == (64, 30)


# Views


def test_a_score_states_that_a_gpu_has_decoded(monkeypatch):
    """Its crops differ slightly. Scores from images that workers decode stay as they were."""
    short = replace(QUICK, epochs=1, at=(1,))
    protocols = [
        lambda: run(task(), short),
        lambda: semi.run(task(backbone=Net()), 0.5, replace(semi.SEMI[0.1], batch=16, epochs=1)),
        lambda: finetune.run(task(backbone=Net())),
    ]
    monkeypatch.setattr(finetune, "EPOCHS", ((math.inf, 1),))
    assert not any("decoder" in one().settings for one in protocols)
    monkeypatch.setattr(Loader, "decoded_by", "both")
    assert [one().settings["decoder"] for one in protocols[:2]] == ["both"] * 2
    assert "decoder" not in protocols[2]().settings  # images in memory have no loader there
    splits = bright()
    names = [str(i) for i in range(64)]
    train = Decoded(splits.train.images.__getitem__, names, splits.train.labels, size=8)
    of_files = task(replace(splits, train=train), backbone=Net())
    assert finetune.run(of_files).settings["decoder"] == "both"


def test_training_views_are_crops_with_the_looks_normalisation():
    eval_view = views("eval", size=16, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    plain = views("linear", size=16, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    assert plain.policy[0].operations[0] == Crop(16, (0.08, 1.0))
    images = torch.randint(0, 256, (5, 3, 20, 24), dtype=torch.uint8)
    chance = plain.draw(5)
    assert torch.equal(
        augmented(eval_view).apply(images, chance)[0], plain.apply(images, chance)[0]
    )


def test_training_views_of_shapes_are_grey_and_standardised_as_the_run_saw_them():
    made = augmented(views("shapes-eval", size=16))
    assert made.policy[0].operations[0] == Crop(16, (0.08, 1.0))
    assert isinstance(made.policy[0].operations[-1], Standardise)
    view = made(torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8))[0]
    assert torch.allclose(view[:, 0], view[:, 2], atol=1e-6)
    assert torch.allclose(view.mean((1, 2, 3)), torch.zeros(5), atol=1e-5)


# What is not modified, and what can be repeated


def test_the_backbone_stays_to_the_bit():
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    for settings in (QUICK, replace(QUICK, rates=(1.0, 2.0))):
        run(task(backbone=net), settings)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not net.training and all(
        p.grad is None and not p.requires_grad for p in net.parameters()
    )


def test_the_same_seed_gives_the_same_numbers_and_another_gives_others():
    results = [
        run(task(backbone=Levels(), seed=seed), replace(QUICK, rates=(1.0, 2.0)))
        for seed in (3, 3, 4)
    ]
    assert results[0] == results[1]
    made = [task(seed=seed) for seed in (3, 3, 4)]
    first, second, third = (
        trained(one, QUICK, one.splits.train, (1.0,)).weights[0] for one in made
    )
    assert torch.equal(first, second) and not torch.equal(first, third)


def test_the_global_generator_is_not_used():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run(task(), QUICK)
    assert torch.equal(torch.get_rng_state(), before)


# What it learns


def test_it_learns_and_shuffled_labels_teach_it_nothing():
    splits, settings = bright(200, 400), replace(QUICK, epochs=20, at=(15,))
    assert run(task(splits), settings).value > 85
    generator = torch.Generator().manual_seed(0)
    shuffled = replace(
        splits.train, labels=splits.train.labels[torch.randperm(200, generator=generator)]
    )
    assert 5 < run(task(replace(splits, train=shuffled)), settings).value < 50  # chance is 25


def test_images_that_are_decoded_teach_as_much():
    splits = bright(64, 60)
    images, labels = splits.train.images, splits.train.labels
    decoded = Decoded(images.__getitem__, [str(i) for i in range(64)], labels, None, 3, 8)
    settings = replace(QUICK, epochs=20)
    assert run(task(replace(splits, train=decoded)), settings).value > 85


def test_top_one_and_top_five_are_counted():
    images, labels = brightness(60, 1, classes=6)
    made = task(replace(bright(classes=6), test=Memory(images, labels)))
    heads = Heads(2, 6, 6, std=0.0, seed=0)
    heads.weights[0].data = torch.eye(6)
    heads.weights[1].data = torch.eye(6).roll(3, 0)
    # class 5 is the least likely
    features = iter([nn.functional.one_hot(labels, 6) - 0.1 * (torch.arange(6) == 5)])
    top1, top5 = judge(made, heads, made.splits.test, lambda view: next(features))
    assert top1 == [100.0, 0.0] and top5[0] == 100.0 and top5[1] < 100


def test_a_classifier_that_cannot_decide_is_not_right():
    made = task()
    top1, _ = judge(made, Heads(1, 4, 24, std=0.0, seed=0), made.splits.test, Levels())
    assert top1 == [25.0]


# A choice of rates


def test_the_choice_of_a_rate_never_sees_the_test_images():
    splits, settings = bright(100, 60), replace(QUICK, rates=(1e-6, 1.0, 1e-5))
    honest = run(task(splits), settings)
    poisoned = Memory(255 - splits.test.images, (splits.test.labels + 1) % 4)
    other = run(task(replace(splits, test=poisoned)), settings)
    for key in ("rate", "validation", "validation_top1"):
        assert honest.settings[key] == other.settings[key]
    assert honest.settings["rate"] == 1.0
    assert honest.settings["validation"] == 10
    assert honest.value > 60 > other.value


def test_held_out_images_are_not_trained_on_and_the_winner_is_trained_on_all(monkeypatch):
    trained_on = []

    def spy(task, heads, source, *rest, **keys):
        trained_on.append(sorted(map(hash, map(bytes, source.images.numpy()))))
        return fit(task, heads, source, *rest, **keys)

    fit = linear.fit
    monkeypatch.setattr(linear, "fit", spy)
    made = task(bright(100))
    run(made, replace(QUICK, rates=(1.0, 2.0), epochs=1))
    assert [len(images) for images in trained_on] == [90, 100]
    assert len(set(trained_on[0]) & set(trained_on[1])) == 90


def test_the_score_of_a_sweep_is_that_of_its_winner_alone():
    made = task(bright(100))
    swept = run(made, replace(QUICK, rates=(1e-6, 1.0)))
    assert swept.value == run(made, replace(QUICK, rates=(1.0,))).value


def test_a_rate_that_overflows_loses_in_a_sweep():
    made = task(bright(100), backbone=nn.Sequential(Levels(), Big()))
    rates, notes = chosen(made, replace(QUICK, rates=(1e35, 1e-35)), made.splits.train)
    assert rates == (1e-35,) and set(notes["validation_top1"]) == {"1e-35"}


class Big(nn.Module):
    """Features multiplied by 1e15."""

    def forward(self, x):
        return x * 1e15


# Errors


def test_what_is_refused():
    several = replace(
        bright(), train=Memory(bright().train.images, torch.ones(64, 4, dtype=torch.int64))
    )
    with pytest.raises(
        ValueError, match="bright has 4 labels for each image, but a softmax classifier needs one"
    ):
        run(task(several), QUICK)
    with pytest.raises(ValueError, match="no labels for its train images"):
        run(task(replace(bright(), train=Memory(bright().train.images))), QUICK)
    with pytest.raises(ValueError, match="has no test split"):
        run(task(replace(bright(), test=None)), QUICK)
    with pytest.raises(ValueError, match="has 8 train images, too few to hold out a tenth"):
        run(task(bright(8)), replace(QUICK, rates=(1.0, 2.0)))
    with pytest.raises(ValueError, match=r"not finite: a learning rate of 1e\+35 is too high"):
        run(task(backbone=nn.Sequential(Levels(), Big())), replace(QUICK, rates=(1e35,)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dict(rates=()), "needs learning rates above 0"),
        (dict(rates=(1.0, 0.0)), "needs learning rates above 0"),
        (dict(batch=0), "at least 1, got 0"),
        (dict(period=12), "a period of 12 epochs needs a cosine schedule per step"),
        (dict(schedule="cosine", at=(), per="step", period=0), "at least 1, got 16 and 0"),
        (dict(epochs=0), "at least one epoch"),
        (dict(at=()), "needs at least one epoch in `at`"),
    ],
)
def test_settings_without_meaning_are_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(QUICK, **change)


# The whole protocol


@pytest.mark.parametrize("name", ["linear", "linear-byol", "linear-simsiam"])
def test_end_to_end_on_shapes(name):
    splits = load("shapes")
    small = replace(
        splits, train=Memory(*splits.train.take(torch.arange(200)), splits.train.classes)
    )
    made = task(small, backbone=Net(), size=32)
    made.eval_view = views("shapes-eval", size=32)
    result = run(made, replace(LINEAR[name], epochs=1))
    assert 0 <= result.value <= result.more["top5"] <= 100
    assert (result.n, result.unit, result.split, result.epoch) == (1000, "% top-1", "test", "last")
    assert result.settings["images"] == 200 and result.settings["precision"] == "fp32"


@pytest.mark.parametrize("name", LINEAR)
def test_every_protocol_is_registered(name):
    protocol = protocols()[name]
    assert protocol.run.func is run and protocol.run.keywords == {"settings": LINEAR[name]}
    assert protocol.data == {
        "linear-places205": "places205",
        "linear-adco-places205": "places205",
    }.get(name, "inat18" if name == "linear-inat18" else None)
    assert protocol.about


def test_few_classes_have_no_top_five():
    assert run(task(), QUICK).more == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_step_is_the_plain_one(monkeypatch):
    made = task(bright(256), backbone=Net())
    made.backbone = made.backbone.cuda()
    made.eval_view = made.eval_view.cuda()
    made.device = torch.device("cuda")
    for settings in (QUICK, replace(QUICK, optimiser="lars", rates=(20.0, 2.0))):
        captured, again = (
            trained(made, settings, made.splits.train, settings.rates) for _ in range(2)
        )
        with monkeypatch.context() as patch:
            patch.setattr(classifier, "CapturedStep", lambda body, *_, **__: body)
            plain = trained(made, settings, made.splits.train, settings.rates)
        for ours, same, theirs in zip(
            captured.parameters(), again.parameters(), plain.parameters(), strict=True
        ):
            assert torch.equal(ours, same)
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_network_that_asks_the_host_trains_without_a_graph():
    made = task(bright(256), backbone=Asking())
    made.eval_view, made.device = made.eval_view.cuda(), torch.device("cuda")
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        assert run(made, replace(QUICK, epochs=20)).value > 85


class Asking(Levels):
    """Features whose computation reads a value back to the host."""

    def forward(self, x):
        assert x.sum().item() < math.inf
        return super().forward(x)


def test_features_do_not_depend_on_the_parts_they_are_made_in():
    net, view = Net().eval(), torch.randn(600, 3, 8, 8, device=CPU)
    torch.testing.assert_close(embed(net, view), net(view).detach(), rtol=1e-5, atol=1e-6)
