"""Tests of the detectors: their parts, training of the whole backbone, RoI pooling and errors."""

import copy
import math

import pytest
import torch
import torchvision
from torch import nn

from antipode.evaluation.detector import DETECTORS, Crops, Form, strides, widths
from antipode.nets.backbone import RESNETS, STEMS, backbone
from antipode.nets.norm import BatchNorm

SMALL = Form((64,), 128, (8, 16, 32, 48, 64), width=16, rois=16)


@pytest.fixture
def slim():
    """Return a frozen backbone whose batch norms differ from their initial state."""
    net = backbone("resnet10-slim")
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return net.eval().requires_grad_(False)


def scenes(count=2, masks=True):
    """Return images in [0,1] with one bright object each, and their targets."""
    images = torch.rand(count, 3, 64, 64) * 0.3
    targets = []
    for image, start in zip(images, (10, 25), strict=False):
        image[:, start : start + 27, start : start + 22] += 0.6
        mask = torch.zeros(1, 64, 64, dtype=torch.uint8)
        mask[0, start : start + 27, start : start + 22] = 1
        target = {
            "boxes": torch.tensor([[start, start, start + 22.0, start + 27.0]]),
            "labels": torch.tensor([1]),
        }
        targets.append(target | ({"masks": mask} if masks else {}))
    return list(images), targets


def maps(net, images):
    """Return the outputs of layer1 to layer4 of a backbone, recorded by hooks."""
    outputs = []
    hooks = [
        getattr(net, f"layer{number}").register_forward_hook(lambda *call: outputs.append(call[2]))
        for number in range(1, 5)
    ]
    net(images)
    for hook in hooks:
        hook.remove()
    return outputs


def test_the_trunk_of_c4_is_the_backbone_up_to_layer3(slim):
    images = torch.randn(2, 3, 64, 96)
    detector = DETECTORS["c4"](slim, 3, SMALL).eval()
    assert torch.equal(detector.backbone(images), maps(slim, images)[2])


@pytest.mark.parametrize("name", ["fpn", "mask-fpn"])
def test_the_pyramid_stands_on_all_four_stages_of_the_backbone(slim, name):
    images = torch.randn(2, 3, 64, 96)
    stages = DETECTORS[name](slim, 3, SMALL).eval().backbone.body(images)
    assert all(torch.equal(*pair) for pair in zip(stages.values(), maps(slim, images), strict=True))


def test_the_head_of_c4_is_layer4_one_more_batch_norm_and_the_mean(slim):
    head = DETECTORS["c4"](slim, 3, SMALL).roi_heads.box_head
    crops = torch.randn(5, 64, 14, 14)
    inside = slim.layer4(crops)  # (5,128,7,7)
    mean = inside.mean((0, 2, 3), keepdim=True)
    var = inside.var((0, 2, 3), correction=0, keepdim=True)
    expected = ((inside - mean) / (var + 1e-5).sqrt()).mean((2, 3))
    head.layer4.eval()  # the additional batch norm stays in training mode
    torch.testing.assert_close(head(crops), expected, rtol=1e-3, atol=1e-5)


def test_every_layer_of_the_head_of_fpn_has_batch_norm(slim):
    """EqCo, appendix B.5: "the additional initialized layers are also equipped with BN"."""
    head = DETECTORS["fpn"](slim, 3, SMALL).roi_heads.box_head
    leaves = [module for module in head.modules() if not list(module.children())]
    weighted = [at for at, leaf in enumerate(leaves) if isinstance(leaf, nn.Conv2d | nn.Linear)]
    assert [type(leaves[at]) for at in weighted] == 4 * [nn.Conv2d] + [nn.Linear]
    for at in weighted:
        assert isinstance(leaves[at + 1], BatchNorm) and isinstance(leaves[at + 2], nn.ReLU)
    crops = torch.randn(6, SMALL.width, 7, 7)
    assert head(crops).shape == (6, 4 * SMALL.width)
    assert head.eval()(crops[:0]).shape == (0, 4 * SMALL.width), "an image may have no proposal"


@pytest.mark.parametrize("name", DETECTORS)
def test_every_weight_is_trained_and_none_of_the_given_one(slim, name):
    before = copy.deepcopy(slim.state_dict())
    detector = DETECTORS[name](slim, 3, SMALL)
    assert all(p.requires_grad for p in detector.parameters())
    sum(detector(*scenes()).values()).backward()
    without_gradient = [
        key for key, p in detector.named_parameters() if p.grad is None or not p.grad.any()
    ]
    assert not without_gradient
    torch.optim.SGD(detector.parameters(), lr=0.1).step()
    assert all(torch.equal(value, before[key]) for key, value in slim.state_dict().items())
    assert not any(p.requires_grad for p in slim.parameters())


@pytest.mark.parametrize("name", DETECTORS)
def test_every_batch_norm_takes_statistics_over_all_ranks_and_none_is_frozen(slim, name):
    detector = DETECTORS[name](slim, 3, SMALL)
    norms = [module for module in detector.modules() if "BatchNorm" in type(module).__name__]
    # one in the head; or two per level of the pyramid, with or without five in the head
    more = {"c4": 1, "fpn": 8 + 5, "mask-fpn": 8}[name]
    assert len(norms) == sum(isinstance(module, nn.BatchNorm2d) for module in slim.modules()) + more
    assert all(
        isinstance(module, BatchNorm) and module.groups == 1 and module.training for module in norms
    )
    before = [module.running_mean.clone() for module in norms]
    detector(*scenes())
    assert not any(
        torch.equal(old, module.running_mean) for old, module in zip(before, norms, strict=True)
    )


# one network of each kind of block and width; tests/nets/test_backbone.py builds all of them
KINDS = ("resnet10-slim", "resnet18", "resnet50", "resnet50x2", "resnext50_32x4d")
NAMES = [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in RESNETS]


@pytest.mark.parametrize("name", NAMES)
def test_any_resnet_lends_its_own_widths(name):
    with torch.device("meta"):
        net = backbone(name)
        predictors = {
            kind: make(net, 7, SMALL).roi_heads.box_predictor for kind, make in DETECTORS.items()
        }
        outputs = maps(net, torch.zeros(1, 3, 64, 64))
    assert widths(net) == [output.shape[1] for output in outputs] and widths(net)[3] == net.width
    assert strides(net) == [64 // output.shape[2] for output in outputs]
    for kind, predictor in predictors.items():
        assert predictor.cls_score.out_features == 8 and predictor.bbox_pred.out_features == 32
        assert predictor.cls_score.in_features == (net.width if kind == "c4" else 4 * SMALL.width)


@pytest.mark.parametrize("kind", DETECTORS)
@pytest.mark.parametrize("stem", STEMS)
def test_any_stem_detects_where_its_maps_are_small_enough(stem, kind):
    net = backbone("resnet10-slim", stem=stem)
    first = {"imagenet": 4, "half": 2, "small": 1}[stem]
    assert strides(net) == [first * factor for factor in (1, 2, 4, 8)]
    detector = DETECTORS[kind](net, 2, SMALL)
    assert all(loss.isfinite() for loss in detector(*scenes()).values())
    (output,) = detector.eval()(scenes(1)[0])
    assert {"boxes", "labels", "scores"} <= output.keys()
    assert ("masks" in output) == (kind == "mask-fpn")


def test_maps_as_large_as_photographs_are_refused():
    net = backbone("resnet10-slim", stem="small")
    message = r"\(1/1 of the image side\) are too large for images of 800 px: .* at most 400 px"
    with pytest.raises(ValueError, match=message):
        DETECTORS["fpn"](net, 3, Form())


def test_a_resnet_of_torchvision_serves_as_well():
    theirs = torchvision.models.resnet18().eval()
    images = torch.randn(1, 3, 64, 64)
    for net in (theirs, backbone(theirs)):
        detector = DETECTORS["c4"](net, 3, SMALL).eval()
        assert torch.equal(detector.backbone(images), maps(theirs, images)[2])


def test_images_are_normalised_with_the_mean_and_deviation_given(slim):
    form = Form(
        (64,), 128, SMALL.anchors, width=16, rois=16, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0)
    )
    detector = DETECTORS["c4"](slim, 3, form).eval()
    inputs = []
    detector.backbone.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    detector([torch.full((3, 64, 64), 0.6)])
    expected = torch.tensor([1.0, 1.6, 0.15]).view(1, 3, 1, 1).expand(1, 3, 64, 64)
    torch.testing.assert_close(inputs[0], expected)


def test_a_crop_of_the_coordinates_holds_the_middles_of_its_bins():
    """The feature map holds image coordinates, so that a shift by half a pixel would show."""
    step = 8
    size = 7
    centres = (torch.arange(20) + 0.5) * step
    coordinates = torch.stack(
        [centres.view(1, -1).expand(20, 20), centres.view(-1, 1).expand(20, 20)]
    )
    box = torch.tensor([[21.0, 33.0, 91.0, 117.0]])
    across, down = Crops(size, [step], 32)({"0": coordinates[None]}, [box], [(160, 160)])[0]
    bins = (torch.arange(size) + 0.5) / size
    torch.testing.assert_close(across, (21 + bins * 70).view(1, -1).expand(size, size))
    torch.testing.assert_close(down, (33 + bins * 84).view(-1, 1).expand(size, size))


def test_a_box_is_cut_from_the_map_of_its_size_in_its_own_image():
    """The level is that of FPN's equation 1: k = floor(4 + log2(sqrt(wh) / 224)), in 2 to 5."""
    levels = {
        str(number): torch.full((2, 1, 1600 >> number + 2, 1600 >> number + 2), 1.0)
        for number in range(4)
    }
    for number, level in enumerate(levels.values()):
        level[0] = number  # the first image
        level[1] = number + 10  # the second image
    sides = [10, 100, 111, 113, 223, 225, 300, 447, 449, 800]
    boxes = torch.tensor([[0.0, 0.0, 2.0 * side, side / 2] for side in sides])
    crops = Crops(2, [4, 8, 16, 32], 32)(levels, [boxes[:4], boxes[4:]], [(1600, 1600)] * 2)
    expected = [min(max(math.floor(4 + math.log2(side / 224)), 2), 5) - 2 for side in sides]
    assert crops[:, 0, 0, 0].tolist() == [
        level + 10 * (at > 3) for at, level in enumerate(expected)
    ]


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()),
            "needs a ResNet with its four stages, but the backbone is a Sequential",
        ),
        (backbone(nn.Conv2d(3, 4, 3)), "is a Conv2d"),
        (backbone("resnet10-slim", channels=1), "images of 3 channels, but this one takes 1"),
    ],
)
def test_what_is_no_resnet_of_colour_images_is_refused(net, words):
    with pytest.raises(ValueError, match=words):
        DETECTORS["c4"](net, 3, SMALL)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sides": ()}, "short sides must lie between"),
        ({"sides": (900,), "longest": 800}, r"between 32 and longest \(800\), got \(900,\)"),
        ({"anchors": (1, 2)}, "anchors must be five increasing side lengths"),
        ({"anchors": (8, 8, 16, 32, 64)}, "anchors must be five increasing side lengths"),
        ({"width": 0}, "width and rois must be at least 1"),
        ({"std": (0.0, 1.0, 1.0)}, "std three positive values"),
        ({"mean": (0.5,)}, "mean must have three values"),
    ],
)
def test_a_form_that_cannot_be_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Form(**wrong)


def test_a_detector_of_nothing_is_refused(slim):
    with pytest.raises(ValueError, match="at least one class of objects, got 0"):
        DETECTORS["c4"](slim, 0, SMALL)
