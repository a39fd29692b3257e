"""Tests of the loop of fine-tuning: what is trained, on which images, with which settings."""

import copy
import math
import multiprocessing
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from antipode.data.loader import Loader
from antipode.data.sources.source import Decoded, Memory
from antipode.evaluation import finetune, tuning
from antipode.evaluation.classifier import Heads
from antipode.evaluation.finetune import chosen, graded_result
from antipode.evaluation.protocol import known
from antipode.evaluation.tuning import Tuning, mild, tune
from tests.evaluation.classes import Levels, Net, bright, brightness, task

QUICK = Tuning(
    epochs=3,
    batch=16,
    lr=0.05,
    classifier_lr=0.5,
    optimiser="sgd",
    weight_decay=0.01,
    warmup=0.5,
    flip=0.0,
    standardised=False,
    crop=(1.0, 1.0),
)


def logits(tuned, x):
    return tuned.heads(tuned.backbone(x))[0]


def pixels(source):
    return (source.images / 255 - 0.5) / 0.25


def naive(task, settings, source):
    """Train with torch's own SGD on the images in the order of the loader, without crops."""
    from antipode import rng

    net = copy.deepcopy(task.backbone).requires_grad_(True).train()
    fc = nn.Linear(16, 4)
    fc.weight.data = 0.01 * torch.randn(4, 16, generator=rng.generator(task.seed, "classifier"))
    fc.bias.data.zero_()
    pairs = ((fc, settings.classifier_lr), (net, settings.lr))
    groups = []
    for part, lr in pairs:
        weights = [p for p in part.parameters() if p.ndim > 1]
        others = [p for p in part.parameters() if p.ndim <= 1]
        groups += [
            {"params": weights, "base": lr, "weight_decay": settings.weight_decay},
            {"params": others, "base": lr, "weight_decay": 0.0},
        ]
    optimiser = torch.optim.SGD(groups, 1.0, momentum=0.9, nesterov=True)
    per_epoch = len(source) // settings.batch
    total, warm = settings.epochs * per_epoch, settings.warmup * per_epoch
    losses = []
    for step in range(total):
        order = rng.permutation(rng.key(task.seed, "order", step // per_epoch), len(source))
        ids = order[step % per_epoch * settings.batch :][: settings.batch]
        ramp = 0.1 + 0.9 * step / warm
        cosine = (1 + math.cos(math.pi * (step - warm) / (total - warm))) / 2
        for group in optimiser.param_groups:
            group["lr"] = group["base"] * (ramp if step < warm else cosine)
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(fc(net(pixels(source)[ids])), source.labels[ids])
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return net, fc, torch.tensor(losses).view(settings.epochs, per_epoch).mean(1).tolist()


def test_the_loop_is_a_naive_loop_with_two_learning_rates(monkeypatch):
    monkeypatch.setattr(tuning, "mild", lambda eval_view, settings: eval_view)
    small = task(backbone=Net())
    tuned = tune(small, QUICK)
    net, fc, losses = naive(small, QUICK, small.splits.train)
    assert tuned.losses == pytest.approx(losses, rel=1e-4)
    torch.testing.assert_close(tuned.heads.weights[0], fc.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tuned.heads.biases[0], fc.bias, rtol=1e-4, atol=1e-5)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(tuned.backbone.state_dict()[name], value, msg=name)
    assert len(tuned.losses) == 3 and not tuned.backbone.training


def test_the_backbone_of_the_task_is_not_changed():
    small = task(backbone=Net())
    before = copy.deepcopy(small.backbone.state_dict())
    tuned = tune(small, QUICK)
    assert all(torch.equal(small.backbone.state_dict()[k], v) for k, v in before.items())
    assert not torch.equal(tuned.backbone.conv.weight, small.backbone.conv.weight)


def test_a_frozen_backbone_keeps_every_bit():
    small = task(backbone=Net())
    tuned = tune(small, chosen(small, freeze=True, epochs=3))
    for name, value in small.backbone.state_dict().items():
        assert torch.equal(tuned.backbone.state_dict()[name], value), name
    assert tuned.heads.weights[0].abs().sum() > 0


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not():
    settings = replace(QUICK, crop=(0.35, 1.0), flip=0.5, standardised=True)
    first, again = (tune(task(backbone=fixed()), settings) for _ in range(2))
    other = tune(task(backbone=fixed(), seed=1), settings)
    assert torch.equal(first.heads.weights[0], again.heads.weights[0])
    assert torch.equal(first.backbone.conv.weight, again.backbone.conv.weight)
    assert not torch.equal(first.heads.weights[0], other.heads.weights[0])


def fixed():
    torch.manual_seed(3)
    return Net()


def test_fine_tuning_leaves_the_random_numbers_of_the_caller():
    before = torch.get_rng_state()
    tune(task(backbone=Levels()), replace(QUICK, lr=None))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_scale_of_features_does_not_matter_to_a_frozen_backbone(scale):
    """Standardised features make one learning rate fit all methods; the result is folded."""
    plain = task(backbone=Levels())
    expected = tune(plain, chosen(plain, freeze=True, epochs=5))
    scaled_task = task(backbone=Levels(scale))
    tuned = tune(scaled_task, chosen(scaled_task, freeze=True, epochs=5))
    x = pixels(plain.splits.test)
    torch.testing.assert_close(logits(tuned, x), logits(expected, x), rtol=1e-3, atol=1e-3)


def decoded():
    """Return splits whose train images are decoded one by one."""
    splits = bright()
    names = [str(i) for i in range(64)]
    train = Decoded(splits.train.images.__getitem__, names, splits.train.labels, size=8)
    return replace(splits, pretrain=train, train=train)


def test_images_in_memory_and_images_from_files_are_trained_in_the_same_order():
    small = task(backbone=fixed())
    a, b = tune(small, QUICK), tune(task(decoded(), backbone=fixed()), QUICK)
    torch.testing.assert_close(a.heads.weights[0], b.heads.weights[0], rtol=1e-3, atol=1e-4)


# Imbalance


def skewed(counts=(40, 4, 4, 4)):
    """Return splits in which the classes differ in their number of train images."""
    splits = bright(400, 80)
    labels = splits.train.labels
    ids = torch.cat([(labels == c).nonzero().flatten()[:n] for c, n in enumerate(counts)])
    train = Memory(splits.train.images[ids], labels[ids], None)
    return replace(splits, pretrain=train, train=train)


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_balanced_sampling_shows_every_class_equally_often(kind):
    splits = skewed()
    seen = []
    source = splits.train
    if kind == "files":
        source = Decoded(
            source.images.__getitem__, [str(i) for i in range(52)], source.labels, size=8
        )
    small = task(replace(splits, train=source))

    def learn(view, ids):
        seen.append((view.clone(), ids.clone()))
        return torch.zeros(())

    settings = replace(QUICK, balanced=True, epochs=1, batch=20, crop=(0.35, 1.0))
    heads = Heads(1, 4, 24, std=0.01, seed=0)
    for step in tuning._steps(small, settings, source, heads, learn):
        step()
    ids = torch.cat([part for _, part in seen])
    assert source.labels[ids].bincount().tolist() == [40, 40, 40, 40]
    assert set(ids.tolist()) == set(range(52))
    views = torch.cat([view for view, _ in seen])
    copies = views[ids == ids[source.labels[ids] == 1][0]].flatten(1)
    assert len(copies) == 10 and len(copies.unique(dim=0)) == 10  # each copy is another crop


def test_balanced_sampling_takes_as_many_steps_as_plain_sampling():
    small = task(skewed())
    plain, balanced = (
        tune(small, replace(QUICK, lr=None, balanced=balanced, batch=13))
        for balanced in (False, True)
    )
    assert len(plain.losses) == len(balanced.losses) == 3


def test_balanced_sampling_raises_the_balanced_accuracy_of_rare_classes():
    splits = skewed((120, 3, 3, 3))
    images, labels = brightness(400, 2, spread=90)
    small = task(replace(splits, test=Memory(images, labels, None)))
    results = {}
    for balanced in (False, True):
        settings = chosen(small, freeze=True, epochs=3, balanced=balanced)
        results[balanced] = graded_result(
            small, settings, tune(small, settings), small.splits.test
        ).more["balanced"]
    assert results[True] > results[False] + 3


# Settings


def test_the_views_keep_the_normalisation_and_colours():
    small = task()
    views = mild(small.eval_view, QUICK)
    images = small.splits.train.images[:5]
    torch.testing.assert_close(views(images)[0], small.eval_view(images)[0])
    half = mild(small.eval_view, replace(QUICK, flip=1.0))
    torch.testing.assert_close(half(images)[0], small.eval_view(images)[0].flip(3))


@pytest.mark.parametrize(
    ("images", "epochs", "batch"),
    [(8, 100, 8), (40, 100, 16), (200, 100, 50), (1999, 100, 64), (2000, 50, 64), (60000, 30, 256)],
)
def test_epochs_and_batch_follow_from_the_number_of_images(images, epochs, batch):
    blank = torch.zeros(images, 3, 1, 1, dtype=torch.uint8)
    source = Memory(blank, torch.arange(images) % 4, None)
    settings = chosen(task(replace(bright(), train=source, pretrain=source)))
    assert (settings.epochs, settings.batch) == (epochs, batch)
    assert settings.warmup == (5.0 if epochs >= 50 else 3.0)


def test_the_optimiser_follows_from_the_network_and_learning_rates_from_the_start():
    normed, other = task(backbone=Net()), task(backbone=Levels())
    tuned, scratch, frozen = (
        chosen(normed, **options) for options in ({}, {"scratch": True}, {"freeze": True})
    )
    assert tuned.optimiser == "sgd" and chosen(other).optimiser == "adamw"
    assert tuned.classifier_lr == 10 * tuned.lr and scratch.classifier_lr == scratch.lr
    assert frozen.lr is None and frozen.classifier_lr == tuned.classifier_lr
    assert tuned.standardised and frozen.standardised and not scratch.standardised
    given = chosen(normed, lr=0.3), chosen(normed, lr=0.3, freeze=True)
    assert [(one.lr, one.classifier_lr) for one in given] == [(0.3, 3.0), (None, 0.3)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "at least one epoch, got 0"),
        ({"lr": 0.0}, "above 0, got 0"),
        ({"lr": math.inf}, "finite"),
        ({"batch": 1}, "between 2 and the 64 train images, got 1"),
        ({"batch": 65}, "between 2 and the 64 train images, got 65"),
        ({"epochs": 10**9}, "epochs must be at most 1,000,000 .*, not 1000000000"),
        ({"batch": 10**9}, "batch must be at most 1,048,576 .*, not 1000000000"),
        ({"epochs": 1.5}, "epochs must be a whole number or None, not 1.5"),
        ({"batch": "8"}, "batch must be a whole number or None, not '8'"),
        ({"lr": "0.1"}, "lr must be a number or None, not '0.1'"),
    ],
)
def test_settings_out_of_range_raise_an_error(options, words):
    with pytest.raises(ValueError, match=words):
        chosen(task(), **options)


def test_numbers_of_numpy_are_settings():
    found = chosen(task(), epochs=np.int64(3), batch=np.int32(8), lr=np.float32(0.5))
    assert found == chosen(task(), epochs=3, batch=8, lr=0.5)
    assert all(type(value) in (int, float) for value in (found.epochs, found.batch, found.lr))


def test_a_learning_rate_that_is_too_high_is_named():
    with pytest.raises(ValueError, match=r"the learning rate 1e\+30 is too high"):
        tune(task(backbone=Net()), replace(QUICK, lr=1e30, classifier_lr=1e30))


def test_a_training_that_fails_ends_its_workers_and_leaves_the_stream_of_its_decoder(monkeypatch):
    """Also while its error is kept, as an evaluation of several protocols does."""
    events = []

    @contextmanager
    def beside(self):
        events.append("begins")
        try:
            yield
        finally:
            events.append("ends")

    monkeypatch.setattr(Loader, "beside", beside)
    with pytest.raises(ValueError, match="too high") as kept:
        tune(task(decoded(), backbone=Net()), replace(QUICK, lr=1e30, classifier_lr=1e30))
    assert events == ["begins", "ends"] and kept.tb is not None
    assert not multiprocessing.active_children()


def test_training_ends_with_the_first_epoch_whose_loss_is_not_finite(monkeypatch):
    steps = []
    monkeypatch.setattr(tuning, "set_rate", lambda optimiser, rate: steps.append(rate))
    with pytest.raises(ValueError, match="NaN or infinite"):
        tune(task(backbone=Broken()), QUICK)
    assert len(steps) == 2 * 4  # two optimisers and one of three epochs


class Broken(Net):
    """A network whose features are NaN in training."""

    def forward(self, x):
        return super().forward(x) * (math.nan if self.training else 1)


# The protocol


def test_the_protocol_uses_the_same_code(monkeypatch):
    monkeypatch.setattr(finetune, "EPOCHS", ((math.inf, 5),))
    small = task(backbone=Net())
    result = known("finetune").run(small)
    settings = chosen(small)
    same = graded_result(small, settings, tune(small, settings), small.splits.test)
    assert result == same
    assert result.value > 50 and result.chance == 25.0 and result.low <= result.value
    assert result.more["balanced"] == result.value  # all classes have as many test images
    assert result.settings["epochs"] == 5 and result.settings["backbone"] == "fine-tuned"
    assert known("finetune").run is finetune.run


def test_optimisers_are_made_for_the_final_memory_layout_of_the_network(monkeypatch):
    """Fused optimisers refuse a weight whose layout changed after their state was made."""
    layouts = []
    plain = tuning.optim.make

    def on_gpu(net, device):  # what a GPU does with the layout
        return net.train().to(memory_format=torch.channels_last)

    def seen(weights, **settings):
        layouts.append([weight.stride() for weight in weights])
        return plain(weights, **settings)

    monkeypatch.setattr(tuning, "_trainable", on_gpu)
    monkeypatch.setattr(tuning.optim, "make", seen)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    tuned = tune(task(backbone=net), replace(QUICK, epochs=1))
    assert [weight.stride() for weight in tuned.backbone.parameters()] in layouts
    assert tuned.backbone[0].weight.is_contiguous(memory_format=torch.channels_last)
