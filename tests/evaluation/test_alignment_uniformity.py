"""Alignment and uniformity: the naive sums over views that the backbone really saw, and what those views are."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from antipode.data.sources.source import Memory
from antipode.data.views.operation import Blur, Centre, Crop, Jitter, Standardise
from antipode.data.views.views import views
from antipode.evaluation import alignment_uniformity as module
from antipode.evaluation.alignment_uniformity import pairs, spread, twice
from antipode.evaluation.protocol import PROTOCOLS
from tests.evaluation.classes import Net, bright, task
from tests.evaluation.test_nearest import Broken


def seen(net):
    """A list that fills with what a network puts out."""
    outputs = []
    net.register_forward_hook(lambda _, given, out: outputs.append(out))
    return outputs


def naive(outputs):
    """Alignment and uniformity of batches that come as view one, view two, view one, ..."""
    first, second = (torch.cat(outputs[side::2]).double().numpy() for side in (0, 1))
    first, second = (part / np.linalg.norm(part, axis=1)[:, None] for part in (first, second))
    near = np.mean([((a - b) ** 2).sum() for a, b in zip(first, second, strict=True)])
    even = [
        np.log(np.mean([np.exp(-2 * ((a - b) ** 2).sum()) for a, b in combinations(part, 2)]))
        for part in (first, second)
    ]
    return near, np.mean(even)


def test_the_numbers_are_the_naive_sums_of_what_the_networks_saw(monkeypatch):
    monkeypatch.setattr(module, "BATCH", 10)
    net, head = Net().eval(), nn.Linear(16, 5)
    outputs, projected = seen(net), seen(head)
    found = spread(task(bright(), net, head=head))
    assert [len(batch) for batch in outputs] == [10] * 8  # 40 test images, two views each
    near, even = naive(outputs)
    assert found.value == pytest.approx(near, rel=1e-4) and found.more[
        "uniformity"
    ] == pytest.approx(even, rel=1e-4)
    near, even = naive(projected)
    assert found.more["head alignment"] == pytest.approx(near, rel=1e-4)
    assert found.more["head uniformity"] == pytest.approx(even, rel=1e-4)
    assert found.n == 40 and found.split == "test" and "alignment" in found.settings["value"]


def test_without_a_head_there_is_the_backbone_alone():
    assert list(spread(task(backbone=Net())).more) == ["uniformity"]


class Constant(nn.Module):
    def forward(self, x):
        return torch.ones(len(x), 4)


class Noise(nn.Module):
    def forward(self, x):
        return torch.randn(len(x), 64)


def test_the_ends_of_the_scale():
    """A collapsed backbone is aligned and not uniform; noise is uniform, near -4, and not aligned."""
    still = spread(task(backbone=Constant()))
    assert still.value == still.more["uniformity"] == 0
    wild = spread(task(bright(test=400), Noise()))
    assert wild.value == pytest.approx(2, abs=0.1) and wild.more["uniformity"] == pytest.approx(
        -3.9, abs=0.15
    )


def test_the_same_seed_draws_the_same_images_and_views(monkeypatch):
    monkeypatch.setattr(module, "IMAGES", 16)
    net = Net().eval()
    one, again, other = (pairs(task(backbone=net, seed=seed))["backbone"] for seed in (0, 0, 1))
    assert one.shape == (2, 16, 16)
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert not torch.allclose(one[0], one[1])


@pytest.mark.parametrize(
    ("images", "batch", "test", "n"), [(16, 8, 40, 16), (4096, 16, 40, 39), (4096, 256, 40, 40)]
)
def test_how_many_images(monkeypatch, images, batch, test, n):
    monkeypatch.setattr(module, "IMAGES", images)
    monkeypatch.setattr(module, "BATCH", batch)
    assert spread(task(bright(test=test), Net())).n == n


def test_views_are_mocos_with_the_pixels_of_evaluation():
    plain = twice(views("eval", size=8, mean=(0.5,), std=(0.25,)))
    kinds = [type(operation) for operation in plain.policy[0].operations]
    assert (
        plain.count == 2
        and kinds[0] is Crop
        and {Jitter, Blur} <= set(kinds)
        and Centre not in kinds
    )
    assert plain.policy[0].operations[-1] is plain.normal and kinds.count(type(plain.normal)) == 1
    shapes = twice(views("shapes-eval", size=8))
    assert isinstance(shapes.policy[0].operations[-1], Standardise)
    assert shapes.normal not in shapes.policy[0].operations


def test_labels_are_not_read_and_train_serves_where_there_is_no_test():
    splits = bright()
    bare = Memory(splits.train.images)
    found = spread(task(replace(splits, train=bare, test=None), Net()))
    assert found.split == "train" and found.n == 64


def test_images_of_one_channel():
    images = torch.randint(256, (12, 1, 8, 8), dtype=torch.uint8)
    grey = replace(bright(), test=Memory(images))
    assert np.isfinite(spread(task(grey, Net(channels=1))).value)


def test_wrong_input_is_a_sentence():
    splits = bright()
    with pytest.raises(ValueError, match="compares images with each other, and bright has 1"):
        spread(task(replace(splits, test=Memory(splits.test.images[:1])), Net()))
    with pytest.raises(ValueError, match="backbone has features that are infinite or not a number"):
        spread(task(backbone=Broken()))


def test_it_stands_in_the_list():
    assert PROTOCOLS["alignment-uniformity"].run is spread
