"""Batch norm in groups, over ranks, shuffled."""

import pytest
import torch
from torch import nn

from antipode import rng
from antipode.core.twin import Ema, constant
from antipode.nets.norm import BatchNorm, convert, local_groups, ranks_of_group
from tests.toys import Tiny


@pytest.mark.parametrize("shape", [(8, 5), (8, 5, 3, 3)])
def test_one_group_is_torchs_batch_norm(double, shape):
    theirs = nn.BatchNorm1d(5) if len(shape) == 2 else nn.BatchNorm2d(5)
    nn.init.normal_(theirs.weight), nn.init.normal_(theirs.bias)
    ours = convert(nn.Sequential(theirs), 1)[0]
    for mode in (True, True, False):
        ours.train(mode), theirs.train(mode)
        x = torch.randn(shape)
        assert (ours(x) - theirs(x)).abs().max() < 1e-12
    for name, value in theirs.state_dict().items():
        assert torch.allclose(ours.state_dict()[name], value), name


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_groups_are_chunks_normalised_apart(double, memory):
    layer, plain = BatchNorm(5, groups=4), nn.BatchNorm2d(5)
    for norm in (layer, plain):
        (
            norm.weight.data.copy_(torch.linspace(0.5, 2, 5)),
            norm.bias.data.copy_(torch.linspace(-1, 1, 5)),
        )
    x = torch.randn(8, 5, 3, 3).to(memory_format=memory).requires_grad_()
    out = layer(x)
    expected = torch.cat([plain(part) for part in x.chunk(4)])
    assert (out - expected).abs().max() < 1e-12
    weight = torch.randn_like(out)
    mine = torch.autograd.grad((out * weight).sum(), [x, layer.weight, layer.bias])
    theirs = torch.autograd.grad((expected * weight).sum(), [x, plain.weight, plain.bias])
    assert all((a - b).abs().max() < 1e-12 for a, b in zip(mine, theirs, strict=True))
    assert mine[0].is_contiguous(memory_format=memory)


@pytest.mark.parametrize("shape", [(8, 3), (8, 3, 2, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_the_gradient_of_groups_is_the_derivative(double, shape, affine):
    layer = BatchNorm(3, groups=2, affine=affine)
    for weight in layer.parameters():
        nn.init.normal_(weight)
    assert torch.autograd.gradcheck(layer, torch.randn(shape, requires_grad=True))


def test_running_statistics_are_the_mean_over_groups(double):
    layer = BatchNorm(5, groups=2, momentum=1.0)
    x = torch.randn(8, 5)
    layer(x)
    assert torch.allclose(layer.running_mean, x.mean(0))
    assert torch.allclose(
        layer.running_var, torch.stack([part.var(0) for part in x.chunk(2)]).mean(0)
    )
    assert layer.num_batches_tracked == 1


def test_half_precision_keeps_float32_statistics():
    layer = BatchNorm(5, groups=2)
    x = 200 + torch.randn(8, 5, 16, 16)  # squares overflow float16
    out = layer(x.half())
    assert out.dtype == torch.float16 and torch.allclose(
        out.float(), layer(x.half().float()), atol=2e-2
    )


@pytest.mark.parametrize(
    ("groups", "batch", "expected"),
    [(8, 256, 8), (8, 16, 8), (8, 12, 6), (8, 7, 1), (8, 15, 5), (1, 64, 1)],
)
def test_a_small_batch_has_as_many_groups_as_leave_two_images_each(groups, batch, expected):
    assert local_groups(groups, batch) == expected


def test_a_group_spans_ranks_if_there_are_fewer_groups_than_ranks(monkeypatch):
    monkeypatch.setattr("antipode.dist.world", lambda: 6)
    assert [ranks_of_group(groups) for groups in (1, 2, 3, 6, 12)] == [6, 3, 2, 1, 1]
    assert [local_groups(groups, 8) for groups in (1, 2, 3, 6, 12)] == [1, 1, 1, 1, 2]
    net = convert(Tiny(), 4)
    with pytest.raises(ValueError, match="4 batch-norm groups cannot be shared among 6 ranks"):
        net(torch.randn(4, 3, 8, 8))
    assert net.eval()(torch.randn(4, 3, 8, 8)).isfinite().all()  # an evaluation needs no groups


def test_converting_keeps_weights_statistics_and_names():
    net = Tiny()
    net(torch.randn(4, 3, 8, 8))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    convert(net, 2)
    assert isinstance(net.bn, BatchNorm) and net.bn.groups == 2
    after = net.state_dict()
    assert before.keys() == after.keys() and all(
        torch.equal(before[name], after[name]) for name in before
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_converting_keeps_eps_and_momentum(double, groups):
    """The input has a small variance, so that eps matters."""
    eps, momentum = 0.3, 0.4
    layer = convert(nn.Sequential(nn.BatchNorm1d(5, eps=eps, momentum=momentum)), groups)[0]
    x = 2 + 0.1 * torch.randn(8, 5)
    parts = x.chunk(groups)
    normalised = [
        (part - part.mean(0)) / (part.var(0, correction=0) + eps).sqrt() for part in parts
    ]
    assert (layer(x) - torch.cat(normalised)).abs().max() < 1e-12
    variance = sum(part.var(0) for part in parts) / groups
    assert torch.allclose(layer.running_mean, momentum * x.mean(0))
    assert torch.allclose(layer.running_var, 1 - momentum + momentum * variance)
    expected = (x - layer.running_mean) / (layer.running_var + eps).sqrt()
    assert (layer.eval()(x) - expected).abs().max() < 1e-12


def test_a_converted_layer_is_the_same_weights_also_where_two_parents_share_it():
    shared = nn.BatchNorm2d(3)
    net = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    weight, mean = shared.weight, shared.running_mean
    convert(net, 2)
    assert net[0][0] is net[1][0] and net[0][0].weight is weight and net[0][0].running_mean is mean


def test_a_batch_norm_with_an_activation_inside_is_not_silently_replaced():
    class WithActivation(nn.BatchNorm2d):
        def forward(self, x):
            return torch.relu(super().forward(x))

    with pytest.raises(ValueError, match="WithActivation cannot be given 2 statistics groups"):
        convert(nn.Sequential(WithActivation(3)), 2)
    assert isinstance(convert(nn.Sequential(WithActivation(3)), 1)[0], WithActivation)


def twin_of(groups, shuffle, joint=False):
    torch.manual_seed(4)
    return Ema(convert(Tiny(), groups), constant(0.9), shuffle=shuffle, joint=joint)


def test_shuffling_with_one_group_changes_nothing(double):
    images, image_ids = [torch.randn(8, 3, 8, 8)], torch.arange(8)
    plain, mixed = twin_of(1, False), twin_of(1, True)
    key = rng.key("a")
    assert (
        plain(images, [], image_ids, key)[0] - mixed(images, [], image_ids, key)[0]
    ).abs().max() < 1e-12


def test_shuffled_groups_mix_the_batch_and_return_each_image_to_its_place(double):
    images, image_ids = torch.randn(8, 3, 8, 8), torch.arange(8)
    twin, key = twin_of(2, True), rng.key("a")
    out = twin([images], [], image_ids, key)[0]
    order = torch.argsort(
        rng.fold(rng.fold(rng.fold(key, 0), torch.zeros(1, dtype=torch.int64)), image_ids)
    )
    assert set(order[:4].tolist()) not in (
        {0, 1, 2, 3},
        {4, 5, 6, 7},
    )  # else the groups would be the plain ones
    expected = torch.empty_like(out)
    for group in order.chunk(2):
        expected[group] = twin_of(1, False)([images[group]], [], image_ids[group], key)[0]
    assert (out - expected).abs().max() < 1e-12


def test_a_new_step_draws_a_new_order(double):
    images, image_ids, twin = [torch.randn(8, 3, 8, 8)], torch.arange(8), twin_of(2, True)
    assert not torch.allclose(
        twin(images, [], image_ids, rng.key(1))[0], twin(images, [], image_ids, rng.key(2))[0]
    )


def test_joint_views_share_statistics_and_separate_ones_do_not(double):
    images, image_ids, key = (
        [torch.randn(8, 3, 8, 8), 3 + torch.randn(8, 3, 8, 8)],
        torch.arange(8),
        rng.key(0),
    )
    joint = torch.cat(twin_of(1, False, joint=True)(images, [], image_ids, key))
    assert (
        joint - twin_of(1, False)([torch.cat(images)], [], torch.arange(16), key)[0]
    ).abs().max() < 1e-12
    apart = torch.cat(twin_of(1, False)(images, [], image_ids, key))
    assert (joint - apart).abs().max() > 1e-2
