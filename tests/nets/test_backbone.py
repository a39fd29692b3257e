"""Tests of backbones: torchvision's keys and outputs, stems, widths, channels, your own modules."""

import pytest
import torch
import torchvision
from torch import nn

from antipode.nets.backbone import RESNETS, backbone, width, zero_residuals
from antipode.nets.heads import StandardLinear, mlp
from antipode.nets.norm import BatchNorm
from antipode.papers import build
from antipode.types import Batch


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "resnet50",
        pytest.param("wide_resnet50_2", marks=pytest.mark.slow),
        "resnext50_32x4d",
    ],
)
def test_same_keys_and_outputs_as_torchvision(name):
    ours, theirs = backbone(name).eval(), getattr(torchvision.models, name)().eval()
    theirs.fc = nn.Identity()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))
    assert width(ours) == theirs(x).shape[1]


def test_convolutions_start_as_torchvisions():
    """The variance is that of He et al. 2015 by the number of outputs."""
    torch.manual_seed(0)
    convolutions = [part for part in backbone("resnet18").modules() if isinstance(part, nn.Conv2d)]
    for part in convolutions:
        outputs = part.out_channels * part.kernel_size[0] * part.kernel_size[1]
        assert part.weight.std().item() == pytest.approx((2 / outputs) ** 0.5, rel=0.05)
    assert len(convolutions) == 20


def test_only_the_layers_that_were_asked_for_have_biases_and_scales():
    kinds = [(hidden, last, affine) for hidden in (0, 1) for last in (0, 1) for affine in (0, 1)]
    for hidden, last, affine in kinds:
        options = {"hidden_bias": bool(hidden), "last_bias": bool(last)}
        net = mlp([4, 5, 6, 3], norm="batch", last_norm=True, last_affine=bool(affine), **options)
        linear = [part for part in net if isinstance(part, nn.Linear)]
        norms = [part for part in net if isinstance(part, BatchNorm)]
        assert [part.bias is not None for part in linear] == [hidden, hidden, last]
        assert [part.weight is not None for part in norms] == [True, True, bool(affine)]


@pytest.mark.parametrize("name", RESNETS)
def test_every_name_builds_and_states_its_width(name):
    with torch.device("meta"):
        net = backbone(name, stem="small", channels=5)
        assert net(torch.empty(2, 5, 32, 32)).shape == (2, width(net))


def test_wider_resnet_50_has_the_sizes_of_eqcos_table_7():
    """Every layer is twice or four times as wide.

    SimCLR's table B.1 also has 94 and 375 million weights.
    """
    with torch.device("meta"):
        millions = [
            sum(p.numel() for p in backbone(f"resnet50{x}").parameters()) / 1e6
            for x in ("", "x2", "x4")
        ]
    assert [round(m) for m in millions] == [24, 94, 375]


@pytest.mark.parametrize(("stem", "size"), [("imagenet", 8), ("half", 16), ("small", 32)])
def test_a_stem_keeps_its_share_of_the_resolution(stem, size):
    net = backbone("resnet10-slim", stem=stem)
    assert net.maxpool(net.conv1(torch.randn(1, 3, 32, 32))).shape[-1] == size


def test_any_module_is_a_backbone():
    maps, tokens = nn.Conv2d(1, 7, 3), nn.Sequential(nn.Flatten(2), nn.Linear(1024, 9))
    assert width(backbone(maps, channels=1)) == 7
    net = backbone(tokens, channels=4)
    assert width(net) == 9 and net(torch.randn(3, 4, 32, 32)).shape == (3, 9)


class Stating(nn.Sequential):
    """States a width of 8, whatever it returns."""

    width = 8


STATING = {
    "vectors": Stating(nn.Flatten(), nn.Linear(3072, 8)),
    "maps": Stating(nn.Conv2d(3, 8, 3)),
    "tokens": Stating(nn.Flatten(2), nn.Linear(1024, 8)),
}


@pytest.mark.parametrize("kind", STATING)
def test_a_module_that_states_its_width_is_taken_as_it_is_only_where_it_returns_vectors(kind):
    net = backbone(STATING[kind])
    assert (net is STATING[kind]) == (kind == "vectors")
    assert width(net) == 8 and net(torch.randn(2, 3, 32, 32)).shape == (2, 8)
    views = [torch.randn(4, 3, 32, 32) for _ in range(2)]
    assert build("simclr", STATING[kind])(Batch(views, torch.arange(4))).loss.isfinite()


@pytest.mark.parametrize(
    ("name", "classifier", "features"),
    [
        ("resnet18", "fc", 512),
        ("mobilenet_v3_small", "classifier", 576),
        ("convnext_tiny", "classifier", 768),
    ],
)
def test_a_torchvision_model_loses_its_classifier_only_inside(name, classifier, features):
    theirs = getattr(torchvision.models, name)()
    ours = backbone(theirs)
    assert width(ours) == features
    assert not isinstance(getattr(theirs, classifier), nn.Identity)
    trained = dict(theirs.named_parameters())
    assert all(p is trained[key.removeprefix("net.")] for key, p in ours.named_parameters())


@pytest.mark.parametrize("method", ["simsiam", "simo", "mocov2"])
def test_trained_weights_are_not_touched_and_stay_the_callers(method):
    theirs = torchvision.models.resnet18()
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.01 * torch.randn_like(p))
    before = {key: value.clone() for key, value in theirs.state_dict().items()}
    learner = build(method, theirs)
    assert all(torch.equal(value, before[key]) for key, value in theirs.state_dict().items())
    mine = {key.removeprefix("net."): p for key, p in learner.backbone.named_parameters()}
    assert all(mine[key] is p for key, p in theirs.named_parameters() if not key.startswith("fc"))


def test_measuring_leaves_frozen_parts_frozen():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval())
    backbone(net)
    assert net.training and not net[1].training


def test_timm_by_name_or_a_sentence_without_it():
    try:
        import timm  # noqa: F401
    except ImportError:
        with pytest.raises(ValueError, match=r"pip install 'antipode\[timm\]'"):
            backbone("timm:resnet18")
        return
    assert width(backbone("timm:resnet18", channels=2)) == 512
    with pytest.raises(ValueError, match="did you mean"):
        backbone("timm:resnet18_")


def test_unknown_names_get_the_nearest():
    with pytest.raises(ValueError, match="there is no backbone 'resnet5', did you mean 'resnet50'"):
        backbone("resnet5")


def test_zeroed_residuals_make_blocks_the_identity():
    net = backbone("resnet10-slim", stem="small").eval()
    zero_residuals(net)
    x = torch.rand(2, 16, 8, 8)
    assert torch.equal(net.layer1[0](x), x)


def kinds(head):
    return [type(layer).__name__ for layer in head]


def test_heads_of_the_papers():
    assert kinds(mlp([8, 3])) == ["Linear"]
    assert kinds(mlp([8, 8, 3])) == ["Linear", "ReLU", "Linear"]
    assert kinds(mlp([8, 8, 3], norm="batch", last_norm=True)) == [
        "Linear",
        "BatchNorm",
        "ReLU",
        "Linear",
        "BatchNorm",
    ]
    assert kinds(mlp([8, 8, 3], norm="layer")) == ["Linear", "LayerNorm", "ReLU", "Linear"]
    assert kinds(mlp([8, 8, 3], norm="weight")) == ["StandardLinear", "ReLU", "StandardLinear"]
    simsiam = mlp(
        [8, 8, 8, 3],
        norm="batch",
        last_norm=True,
        last_affine=False,
        hidden_bias=False,
        last_bias=False,
    )
    assert all(layer.bias is None for layer in simsiam if isinstance(layer, nn.Linear))
    assert [layer.weight is None for layer in simsiam if isinstance(layer, BatchNorm)] == [
        False,
        False,
        True,
    ]
    assert abs(mlp([400, 400], std=0.01)[0].weight.std() - 0.01) < 1e-3


def test_standardised_weights_have_mean_zero_and_keep_the_variance():
    layer = StandardLinear(400, 300, bias=False)
    with torch.no_grad():
        layer.weight.mul_(7).add_(3)
    x = torch.randn(200, 400)
    assert abs(layer(x).var() - 1) < 0.05
    assert (layer(torch.ones(1, 400))).abs().max() < 1e-3
