"""Tests of retrieval: its laws on features, its images and views, the network before training."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import antipode
from antipode.data.sources.source import Decoded, Memory
from antipode.data.views.operation import Blur, Centre, Crop, Jitter, Standardise
from antipode.data.views.policy import View, policies
from antipode.data.views.views import views
from antipode.evaluation import retrieval as module
from antipode.evaluation.pixels import as_evaluated
from antipode.evaluation.protocol import protocols
from antipode.evaluation.retrieval import found, pairs
from antipode.evaluation.untrained import untrained_backbone
from antipode.nets.backbone import backbone
from antipode.nets.weights import tensors
from antipode.runs.run import opened
from antipode.training.build import build
from tests.evaluation.classes import Net, bright, task
from tests.evaluation.test_alignment_uniformity import Constant, Noise
from tests.evaluation.test_evaluate import Forbidden
from tests.evaluation.test_nearest import Broken


def noise(n, seed=0, size=8):
    """Return images (N,3,size,size) that have nothing in common."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (n, 3, size, size), generator=generator, dtype=torch.uint8)


def pictures(n, **options):
    """Return splits whose test images are `noise`."""
    return replace(bright(), test=Memory(noise(n, **options)))


def retrieval(task):
    return protocols()["retrieval"].run(task)


# Laws of the hits


def naive(x):
    """Return the hits (N,2), view by view."""
    n = x.shape[1]
    x = x.double().numpy()
    keys = [(side, image) for side in (0, 1) for image in range(n)]

    def cosine(a, b):
        return x[a] @ x[b] / np.linalg.norm(x[a]) / np.linalg.norm(x[b])

    hits = np.zeros((n, 2), dtype=bool)
    for side, image in keys:
        own = cosine((side, image), (1 - side, image))
        rest = [cosine((side, image), key) for key in keys if key[1] != image]
        hits[image, side] = own > max(rest)
    return hits


@pytest.mark.parametrize("rows", [1, 7, 1024])
def test_hits_are_those_of_a_naive_search(rows, monkeypatch):
    monkeypatch.setattr(module, "ROWS", rows)
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(25, 4, generator=generator)
    x = centre + 0.7 * torch.randn(2, 25, 4, generator=generator)
    assert 0.2 < found(x).double().mean() < 0.8
    assert np.array_equal(found(x).numpy(), naive(x))


def test_features_that_identify_the_image_find_every_view():
    assert found(torch.eye(30).expand(2, -1, -1)).all()


def test_random_features_find_by_chance():
    """Of 2N - 1 candidates one is the other view."""
    generator = torch.Generator().manual_seed(0)
    share = [found(torch.randn(2, 5, 64, generator=generator)).double().mean() for _ in range(600)]
    assert np.mean(share) == pytest.approx(1 / 9, abs=0.015)


def test_a_tie_is_not_a_hit():
    assert not found(torch.full((2, 50, 7), 0.3)).any()
    assert not found(torch.zeros(2, 5, 7)).any()
    twins = torch.eye(4).repeat(1, 2).view(8, 4).expand(2, -1, -1)  # every image is there twice
    assert not found(twins).any()


def test_lengths_do_not_matter():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 40, 6, generator=generator) + 0.5 * torch.randn(2, 40, 6)
    lengths = torch.logspace(-15, 15, 80).view(2, 40, 1)
    assert torch.equal(found(x), found(x * lengths))
    assert 0 < found(x).double().mean() < 1


def test_small_differences_count():
    """The features of an untrained network point in almost the same direction."""
    x = 1 + 1e-5 * torch.eye(30, dtype=torch.float64).expand(2, -1, -1)
    assert found(x).all()


# The score


class Pixels(nn.Module):
    def forward(self, x):
        return x.flatten(1)


def test_the_ends_of_the_scale(monkeypatch):
    """With two equal views, the pixels identify the image."""

    def still(size, normal):
        return 2 * [View(size, (Centre(size, size), normal))]

    monkeypatch.setitem(policies(), "still", still)
    best = module.retrieval(task(pictures(300), Pixels()), policy="still")
    assert (best.value, best.low, best.high) == (100, 100, 100)
    assert best.chance == pytest.approx(100 / 599) and best.n == 300
    wild = retrieval(task(pictures(400), Noise()))
    assert wild.value < 1 and wild.chance == pytest.approx(100 / 799)
    assert retrieval(task(pictures(40), Constant())).value == 0


def test_the_score_is_the_share_of_hits_with_an_interval_over_images():
    made = task(pictures(120), Pixels())
    result = retrieval(made)
    source, _ = made.images()
    hits = found(*pairs(made, source, [Pixels()], "simclr"))
    assert result.value == pytest.approx(100 * hits.double().mean().item())
    assert result.chance < result.low < result.value < result.high < 100
    # both views of an image hit or miss together more often than two images do
    draw = np.random.default_rng(0)
    share = 100 * hits.double().mean(1).numpy()
    means = [draw.choice(share, 120).mean() for _ in range(10_000)]
    assert (result.low, result.high) == pytest.approx(np.quantile(means, (0.025, 0.975)), abs=0.5)
    assert result.unit == "% of views" and result.split == "test" and result.more == {}


def test_the_views_are_those_of_the_policy_with_the_pixels_of_evaluation():
    policy = policies()["simclr"](8, None)
    plain = as_evaluated(policy, views("eval", size=8, mean=(0.5,), std=(0.25,)))
    kinds = [type(operation) for operation in plain.policy[0].operations]
    assert plain.count == 2 and kinds[0] is Crop and {Jitter, Blur} <= set(kinds)
    assert plain.policy[0].operations[:-1] == policy[0].operations[:-1]
    assert plain.policy[0].operations[-1] is plain.normal
    shapes = as_evaluated(policy, views("shapes-eval", size=8))
    assert isinstance(shapes.policy[0].operations[-1], Standardise)


def test_the_seed_decides_images_and_views(monkeypatch):
    monkeypatch.setattr(module, "IMAGES", 16)
    splits = pictures(40)
    one, again, other = (
        pairs(task(splits, seed=seed), splits.test, [Pixels()], "simclr")[0] for seed in (0, 0, 1)
    )
    assert one.shape == (2, 16, 192)
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert not torch.allclose(one[0], one[1])


@pytest.mark.parametrize(
    ("most", "batch", "images", "n"),
    [(2000, 250, 35, 35), (2000, 10, 35, 35), (2000, 34, 35, 35), (20, 8, 35, 20), (20, 8, 2, 2)],
)
def test_every_image_is_there_once_whatever_the_batch(most, batch, images, n, monkeypatch):
    monkeypatch.setattr(module, "IMAGES", most)
    monkeypatch.setattr(module, "BATCH", batch)
    still = torch.arange(images).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).to(torch.uint8)
    made = task(replace(bright(), test=Memory(still)))
    means = lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())  # noqa: E731
    monkeypatch.setitem(
        policies(), "still", lambda size, normal: 2 * [View(size, (Centre(size, size), normal))]
    )
    x = pairs(made, made.splits.test, [means()], "still")[0]
    assert x.shape == (2, n, 3) and len(x[0, :, 0].unique()) == n
    assert retrieval(made).n == n


def test_an_image_that_replaces_a_broken_one_is_counted_once():
    images = noise(12)

    def read(index):
        if index == 3:
            raise ValueError("cannot be decoded")
        return images[index]

    names = [str(index) for index in range(12)]
    splits = replace(bright(), test=Decoded(read, names, None, None, 3, 8))
    with pytest.warns(UserWarning, match="3 cannot be decoded"):
        assert retrieval(task(splits, Pixels())).n == 11


def test_labels_are_never_read():
    images = noise(30)
    net = Net()
    results = [
        retrieval(task(replace(bright(), pretrain=source, train=source, test=source), net))
        for source in (Forbidden(images, torch.arange(30)), Memory(images))
    ]
    assert results[0] == results[1]


def test_without_test_images_the_images_of_pretraining_serve():
    splits = bright()
    result = retrieval(task(replace(splits, pretrain=Memory(noise(25)), test=None), Net()))
    assert (result.split, result.n) == ("train", 25)


def test_wrong_input_is_a_sentence():
    with pytest.raises(ValueError, match="needs at least two images, but bright has 1"):
        retrieval(task(pictures(1), Net()))
    with pytest.raises(ValueError, match="backbone has features that are NaN or infinite"):
        retrieval(task(pictures(4), Broken()))


def test_images_of_one_channel():
    grey = replace(bright(), test=Memory(noise(12)[:, :1]))
    assert 0 <= retrieval(task(grey, Net(channels=1))).value <= 100


# The network before training


def same(a, b):
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("retrieval") / "run"
    return antipode.pretrain("digits.dcl", epochs=2, seed=3, out=out, quiet=True)


def test_the_network_before_training_is_the_one_that_training_starts_from(run):
    assert run.frozen_backbone  # building it draws weights
    before = torch.get_rng_state()
    net = untrained_backbone(run)
    assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers are kept"
    assert same(net, build(run.recipe).learner.online.backbone)
    assert not same(net, run.backbone()) and not net.training
    score = antipode.evaluate(run, "retrieval")["retrieval"]
    assert score.more["untrained"] != score.value


def test_a_run_that_began_with_weights_is_compared_with_these(tmp_path):
    """Scales that are not 1 were trained, so SimSiam does not set them to 0."""
    first = backbone("resnet10-slim", stem="small", channels=1)
    for module_ in first.modules():
        if isinstance(module_, nn.BatchNorm2d):
            nn.init.uniform_(module_.weight)
    torch.save(first.state_dict(), tmp_path / "first.pth")
    flags = {"epochs": 1, "batch": 400, "out": tmp_path / "run", "quiet": True}
    weights = {"backbone.weights": str(tmp_path / "first.pth"), "backbone.stem": "small"}
    run = antipode.pretrain("digits.simsiam", overrides=weights, **flags)
    net = untrained_backbone(run)
    assert tensors(net).keys() == tensors(first).keys()
    assert all(torch.equal(tensors(net)[key], value) for key, value in tensors(first).items())
    (tmp_path / "first.pth").unlink()
    with pytest.warns(UserWarning, match="network before training is unknown.*first.pth"):
        assert antipode.evaluate(run, "retrieval")["retrieval"].more == {}


def test_networks_that_no_run_trained_are_compared_with_random_weights(run, tmp_path):
    file = f"file:{run.path / 'backbone.safetensors'}@resnet10-slim"
    flags = {"protocols": "retrieval", "data": "digits", "seed": 5}
    random = antipode.evaluate("random:resnet10-slim", out=tmp_path / "a", **flags)["retrieval"]
    theirs = antipode.evaluate(file, out=tmp_path / "b", **flags)["retrieval"]
    own = antipode.evaluate(run, "retrieval", seed=5)["retrieval"]
    assert random.more["untrained"] == random.value
    assert theirs.more["untrained"] == random.value, "the same architecture and the same seed"
    assert theirs.value == own.value, "the same weights and the same views"
    net = untrained_backbone(opened(file, data="digits", seed=5))
    assert same(net, opened("random:resnet10-slim", data="digits", seed=5).backbone())


def test_the_first_weights_of_your_own_module_are_unknown(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    data = TensorDataset(noise(40))
    flags = {"epochs": 1, "batch": 20, "overrides": {"views.size": 8}, "quiet": True}
    run = antipode.pretrain(method="simclr", data=data, backbone=net, out=tmp_path / "own", **flags)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = antipode.evaluate(run)
    assert list(scores) == ["retrieval", "alignment-uniformity"]
    assert scores["retrieval"].more == {} and scores["retrieval"].split == "train"
    assert set(run.scores) == set(scores)
