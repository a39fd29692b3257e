"""Tests of semi-supervised learning: the selected labels, training, and the unchanged backbone."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from antipode import rng
from antipode.data.sources.source import Decoded, Memory
from antipode.evaluation import classifier, linear, semi
from antipode.evaluation.linear import Linear
from antipode.evaluation.protocol import protocols
from antipode.evaluation.semi import SEMI, Semi, balanced, run, tuned
from tests.evaluation.classes import Levels, Net, bright, task

QUICK = Semi(classifier=1.0, encoder=0.1, batch=16, epochs=3)


def test_the_settings_are_msbregs():
    assert (SEMI[0.01].classifier, SEMI[0.01].encoder) == (2.0, None)
    assert (SEMI[0.1].classifier, SEMI[0.1].encoder) == (0.25, 2.5e-4)
    for settings in SEMI.values():
        assert (settings.batch, settings.momentum, settings.nesterov) == (1024, 0.9, True)
    assert protocols()["semi-1"].run.keywords == {"share": 0.01}
    assert protocols()["semi-10"].run.keywords == {"share": 0.1}


# The loop


def naive(task, settings, source):
    """Train a copy of the network and nn.Linear, each with its own torch SGD.

    The images are centre views in the order of the loader.
    """
    net = copy.deepcopy(task.backbone).requires_grad_(True).train()
    fc = nn.Linear(16, 4)
    fc.weight.data = 0.01 * torch.randn(4, 16, generator=rng.generator(task.seed, "classifier"))
    fc.bias.data.zero_()
    optimisers = [
        torch.optim.SGD(part.parameters(), 1.0, momentum=0.9, nesterov=True) for part in (fc, net)
    ]
    x = (source.images / 255 - 0.5) / 0.25
    per_epoch = len(source) // settings.batch
    for step in range(settings.epochs * per_epoch):
        order = rng.permutation(rng.key(task.seed, "order", step // per_epoch), len(x))
        ids = order[step % per_epoch * settings.batch :][: settings.batch]
        cosine = (1 + math.cos(math.pi * step / (settings.epochs * per_epoch))) / 2
        for optimiser, lr in zip(optimisers, (settings.classifier, settings.encoder), strict=True):
            optimiser.param_groups[0]["lr"] = lr * cosine
            optimiser.zero_grad()
        nn.functional.cross_entropy(fc(net(x[ids])), source.labels[ids]).backward()
        for optimiser in optimisers:
            optimiser.step()
    return net, fc


def test_fine_tuning_is_a_naive_loop_with_two_rates(monkeypatch):
    monkeypatch.setattr(classifier, "augmented", lambda eval_view: eval_view)
    small = task(backbone=Net())
    heads, net = tuned(small, QUICK, QUICK.encoder, small.splits.train)
    expected, fc = naive(small, QUICK, small.splits.train)
    torch.testing.assert_close(heads.weights[0], fc.weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(heads.biases[0], fc.bias, rtol=1e-4, atol=1e-5)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(net.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert not net.training


def test_a_frozen_encoder_is_linear_evaluation_on_the_few_images():
    splits = bright(400, 100)
    settings = replace(SEMI[0.01], epochs=10, batch=16)
    result = run(task(splits), 0.1, settings)
    few, _ = semi.few(task(splits), splits.train, 0.1, "")
    # no weight decay, and the learning rate is not scaled
    same = Linear(
        about="", rates=(2.0,), batch=16, epochs=10, nesterov=True, schedule="cosine", per="step"
    )
    assert result.value == linear.run(task(replace(splits, train=few)), same).value
    assert (result.settings["images"], result.settings["backbone"]) == (40, "frozen")


@pytest.mark.parametrize("encoder", [None, 0.1])
def test_the_given_backbone_stays_to_the_bit(encoder):
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run(task(backbone=net), 0.5, replace(QUICK, encoder=encoder))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not net.training
    assert all(p.grad is None and not p.requires_grad for p in net.parameters())


def test_the_copy_moves_its_statistics_too():
    small = task(backbone=Net())
    _, net = tuned(small, QUICK, 0.1, small.splits.train)
    before = small.backbone.state_dict()
    assert all(not torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("encoder", [None, 0.1])
def test_the_same_seed_gives_the_same_numbers(encoder):
    net = Net()
    results = [
        run(task(bright(200, 400), copy.deepcopy(net), seed), 0.5, replace(QUICK, encoder=encoder))
        for seed in (3, 3)
    ]
    assert results[0] == results[1]


def test_it_learns_from_few_labels_and_nothing_from_wrong_ones():
    splits = bright(400, 400)
    settings = replace(QUICK, encoder=None, epochs=40)
    assert run(task(splits), 0.1, settings).value > 75
    generator = torch.Generator().manual_seed(0)
    shuffled = replace(
        splits.train, labels=splits.train.labels[torch.randperm(400, generator=generator)]
    )
    assert 5 < run(task(replace(splits, train=shuffled)), 0.1, settings).value < 50  # chance is 25


def test_fine_tuning_opens_the_eyes_of_a_blind_backbone():
    net = Net()
    net.bn.weight.data = torch.zeros(16)  # the same output for every image
    net.bn.bias.data = torch.full((16,), 0.1)
    small = task(bright(200, 200), backbone=net)
    frozen, fine_tuned = (
        run(small, 0.5, Semi(classifier=0.1, encoder=lr, batch=32, epochs=15)) for lr in (None, 0.1)
    )
    assert frozen.value == 25 and fine_tuned.value > 40
    assert frozen.settings["backbone"] == "frozen"
    assert fine_tuned.settings["backbone"] == "fine-tuned"


# Which labels


def test_a_share_has_as_many_of_each_class_and_changes_with_the_seed():
    labels = torch.arange(10).repeat(500)
    ids = balanced(labels, 10, 0.01, 0)
    assert len(ids) == 50 and labels[ids].bincount().tolist() == [5] * 10
    assert torch.equal(ids, ids.unique())  # in ascending order, without duplicates
    assert torch.equal(ids, balanced(labels, 10, 0.01, 0))
    assert not torch.equal(ids, balanced(labels, 10, 0.01, 1))


def test_the_images_of_a_class_are_rounded_to_the_nearest_number():
    labels = torch.arange(2).repeat(50)
    for share, count in ((0.023, 1), (0.027, 1), (0.034, 2), (0.11, 6), (0.154, 8), (1.0, 50)):
        assert len(balanced(labels, 2, share, 0)) == 2 * count, share


def test_a_share_has_one_of_each_class_at_least_and_all_of_a_rare_one():
    assert balanced(torch.arange(4).repeat(3), 4, 0.01, 0).numel() == 4
    labels = torch.tensor([0] * 50 + [1] * 3)
    assert labels[balanced(labels, 2, 0.5, 0)].bincount().tolist() == [13, 3]


def imagenet(root, names=("n01_1.JPEG", "n01_2.JPEG", "n02_1.JPEG", "n02_2.JPEG", "n02_3.JPEG")):
    """Return a task on a data set called imagenet, and its train images; create the lists' folder.

    The two classes differ in brightness.
    """
    levels = torch.tensor([20, 30, 200, 210, 220], dtype=torch.uint8)
    images = levels.view(5, 1, 1, 1).expand(5, 3, 8, 8).contiguous()
    files = [f"{name[:3]}/{name}" for name in names]
    train = Decoded(images.__getitem__, files, torch.tensor([0, 0, 1, 1, 1]), None, 3, 8)
    (root / "imagenet_subsets").mkdir()
    test = Memory(images, torch.tensor([0, 0, 1, 1, 1]))
    return task(replace(bright(), name="imagenet", train=train, test=test), root=str(root)), train


def test_imagenets_few_labels_are_those_of_simclrs_list(tmp_path):
    small, train = imagenet(tmp_path)
    (tmp_path / "imagenet_subsets" / "1percent.txt").write_text(
        "n02_3.JPEG\nn01_2.JPEG\n\nn02_3.JPEG\n"
    )
    few, selection = semi.few(small, train, 0.01, SEMI[0.01].file)
    assert list(few.names) == ["n01/n01_2.JPEG", "n02/n02_3.JPEG"] and few.labels.tolist() == [0, 1]
    assert selection == "imagenet_subsets/1percent.txt"
    result = run(small, 0.01, replace(SEMI[0.01], epochs=1))
    assert (result.settings["images"], result.settings["drawn"]) == (2, selection)


def test_a_list_that_is_not_there_or_does_not_fit_is_explained(tmp_path):
    small, _ = imagenet(tmp_path)
    file = tmp_path / "imagenet_subsets" / "10percent.txt"
    message = r"put imagenet_subsets/10percent.txt of github.com/google-research/simclr"
    with pytest.raises(FileNotFoundError, match=message):
        run(small, 0.1)
    file.write_text("n02_3.JPEG\nn09_9.JPEG\n")
    message = r"1 of the 2 images in .*10percent.txt are not in the train split; the first is n09"
    with pytest.raises(ValueError, match=message):
        run(small, 0.1)
    file.write_text("\n")
    with pytest.raises(ValueError, match=r"10percent.txt lists no images"):
        run(small, 0.1)
    small.splits = replace(small.splits, train=small.splits.test)
    with pytest.raises(ValueError, match="the images of this imagenet have no file names"):
        run(small, 0.1)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"settings for the shares 0.01, 0.1, but not for 0.5"):
        run(task(), 0.5)
    with pytest.raises(ValueError, match=r"must lie in \(0, 1\], got 2"):
        run(task(), 2.0, QUICK)
    gap = replace(
        bright(), train=Memory(bright().train.images, bright().train.labels % 3, list("abcd"))
    )
    with pytest.raises(ValueError, match="class 3 of 4 has no train image"):
        run(task(gap), 0.1)
    several = replace(
        bright(), train=Memory(bright().train.images, torch.ones(64, 4, dtype=torch.int64))
    )
    with pytest.raises(ValueError, match="a softmax classifier needs one"):
        run(task(several), 0.1)
    with pytest.raises(ValueError, match="not finite: the learning rate 1e"):
        run(
            task(backbone=nn.Sequential(Levels(1e20), nn.Linear(24, 16))),
            0.5,
            replace(QUICK, classifier=1e35),
        )


@pytest.mark.parametrize("name", ["semi-1", "semi-10"])
def test_end_to_end(name):
    result = protocols()[name].run(task(bright(1000, 100), backbone=Net()))
    assert result.n == 100 and result.unit == "% top-1" and result.epoch == "last"
    share = {"semi-1": 0.01, "semi-10": 0.1}[name]
    assert (result.settings["share"], result.settings["images"]) == (
        share,
        round(1000 * share / 4) * 4,
    )
    assert result.settings["batch"] == result.settings["images"]
    assert "not stated" in result.settings["chosen"]
