"""Tests of alignment and uniformity: naive sums over the outputs of a network, and the views."""

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
from antipode.evaluation.alignment_uniformity import alignment_uniformity, pairs, twice
from antipode.evaluation.protocol import protocols
from tests.evaluation.classes import Net, bright, task
from tests.evaluation.test_nearest import Broken


def recorded(net):
    """Return a list to which every output of a network is appended."""
    outputs = []
    net.register_forward_hook(lambda _, given, out: outputs.append(out))
    return outputs


def naive(outputs):
    """Return alignment and uniformity of outputs in the order view 1, view 2, view 1, ..."""
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
    outputs, projected = recorded(net), recorded(head)
    result = alignment_uniformity(task(bright(), net, head=head))
    assert [len(batch) for batch in outputs] == [10] * 8  # 40 test images, two views each
    near, even = naive(outputs)
    assert result.value == pytest.approx(near, rel=1e-4) and result.more[
        "uniformity"
    ] == pytest.approx(even, rel=1e-4)
    near, even = naive(projected)
    assert result.more["head alignment"] == pytest.approx(near, rel=1e-4)
    assert result.more["head uniformity"] == pytest.approx(even, rel=1e-4)
    assert result.n == 40 and result.split == "test" and "alignment" in result.settings["value"]


def test_without_a_head_there_is_the_backbone_alone():
    more = alignment_uniformity(task(backbone=Net())).more
    assert list(more) == ["uniformity", "spread", "rank", "similarity"]


class Constant(nn.Module):
    def forward(self, x):
        return torch.ones(len(x), 4)


class Noise(nn.Module):
    def forward(self, x):
        return torch.randn(len(x), 64)


def test_the_ends_of_the_scale():
    """A collapsed backbone is aligned and not uniform. Noise is uniform and not aligned."""
    still = alignment_uniformity(task(backbone=Constant()))
    assert still.value == 0 and still.more["uniformity"] == pytest.approx(0, abs=1e-6)
    wild = alignment_uniformity(task(bright(test=400), Noise()))
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
    assert alignment_uniformity(task(bright(test=test), Net())).n == n


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
    result = alignment_uniformity(task(replace(splits, train=bare, test=None), Net()))
    assert result.split == "train" and result.n == 64


def test_images_of_one_channel():
    images = torch.randint(256, (12, 1, 8, 8), dtype=torch.uint8)
    grey = replace(bright(), test=Memory(images))
    assert np.isfinite(alignment_uniformity(task(grey, Net(channels=1))).value)


def test_wrong_input_is_a_sentence():
    splits = bright()
    with pytest.raises(ValueError, match="needs at least two images, but bright has 1"):
        alignment_uniformity(task(replace(splits, test=Memory(splits.test.images[:1])), Net()))
    with pytest.raises(ValueError, match="backbone has features that are NaN or infinite"):
        alignment_uniformity(task(backbone=Broken()))


def test_it_stands_in_the_list():
    assert protocols()["alignment-uniformity"].run is alignment_uniformity
