"""How the views of a batch pass through a network."""

import pytest
import torch

from antipode.core.passes import SeparateStatistics, passes, view_norms
from antipode.nets.norm import BatchNorm


class Broken(Exception):
    """The error of these tests."""


def test_each_part_of_a_batch_has_statistics_of_its_own_inside_the_block_only(double):
    layer = BatchNorm(3)
    first = torch.randn(6, 3) + 4
    second = 3 * torch.randn(6, 3) - 2
    together = torch.cat([first, second])
    common = BatchNorm(3)(together)
    alone = torch.cat([BatchNorm(3)(first), BatchNorm(3)(second)])
    with SeparateStatistics([layer], 2):
        assert torch.allclose(layer(together), alone)
    assert torch.allclose(layer(together), common)
    assert not torch.allclose(alone, common)


def test_separate_statistics_end_after_an_exception():
    layers = [BatchNorm(3), BatchNorm(2)]
    with pytest.raises(Broken), SeparateStatistics(layers, 4):
        assert [layer.views_in_batch for layer in layers] == [4, 4]
        raise Broken
    assert [layer.views_in_batch for layer in layers] == [1, 1]


def test_only_layers_that_can_separate_views_are_found():
    ours = BatchNorm(3)
    net = torch.nn.Sequential(ours, torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    other = BatchNorm(2)
    assert view_norms(net, None, other) == [ours, other]


def test_joint_views_of_one_size_are_one_batch_with_common_statistics():
    images = [torch.zeros(2, 3, 8, 8), torch.ones(2, 3, 8, 8), torch.zeros(2, 3, 4, 4)]
    joint = list(passes(images, joint=True, separable=True))
    assert [(len(batch), views, separate) for batch, views, separate in joint] == [
        (4, 2, 1),
        (2, 1, 1),
    ]
    assert torch.equal(joint[0][0], torch.cat(images[:2]))
    single = list(passes(images, joint=False, separable=True))
    assert [(len(batch), views, separate) for batch, views, separate in single] == 3 * [(2, 1, 1)]
