"""Detectors hold the given backbone, train all of it, and cut boxes where they lie."""

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
    """A backbone whose batch norms have statistics of their own, frozen as evaluations get it."""
    net = backbone("resnet10-slim")
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return net.eval().requires_grad_(False)


def scenes(count=2, masks=True):
    """Images in [0,1] with one bright thing each, and their targets."""
    images, targets = torch.rand(count, 3, 64, 64) * 0.3, []
    for image, place in zip(images, (10, 25), strict=False):
        image[:, place : place + 27, place : place + 22] += 0.6
        mask = torch.zeros(1, 64, 64, dtype=torch.uint8)
        mask[0, place : place + 27, place : place + 22] = 1
        target = {
            "boxes": torch.tensor([[place, place, place + 22.0, place + 27.0]]),
            "labels": torch.tensor([1]),
        }
        targets.append(target | ({"masks": mask} if masks else {}))
    return list(images), targets


def maps(net, images):
    """What layer1 to layer4 of a backbone give, seen from outside."""
    seen = []
    hooks = [
        getattr(net, f"layer{number}").register_forward_hook(lambda *call: seen.append(call[2]))
        for number in range(1, 5)
    ]
    net(images)
    for hook in hooks:
        hook.remove()
    return seen


def test_the_trunk_of_c4_is_the_backbone_up_to_layer3(slim):
    images = torch.randn(2, 3, 64, 96)
    assert torch.equal(
        DETECTORS["c4"](slim, 3, SMALL).eval().backbone(images), maps(slim, images)[2]
    )


@pytest.mark.parametrize("name", ["fpn", "mask-fpn"])
def test_the_pyramid_stands_on_all_four_stages_of_the_backbone(slim, name):
    images = torch.randn(2, 3, 64, 96)
    found = DETECTORS[name](slim, 3, SMALL).eval().backbone.body(images)
    assert all(torch.equal(*pair) for pair in zip(found.values(), maps(slim, images), strict=True))


def test_the_head_of_c4_is_layer4_one_more_batch_norm_and_the_mean(slim):
    head, crops = DETECTORS["c4"](slim, 3, SMALL).roi_heads.box_head, torch.randn(5, 64, 14, 14)
    inside = slim.layer4(crops)  # (5,128,7,7)
    mean, var = (
        inside.mean((0, 2, 3), keepdim=True),
        inside.var((0, 2, 3), correction=0, keepdim=True),
    )
    expected = ((inside - mean) / (var + 1e-5).sqrt()).mean((2, 3))
    head.layer4.eval()  # the head's own norm takes the statistics of the batch
    torch.testing.assert_close(head(crops), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", DETECTORS)
def test_every_weight_is_trained_and_none_of_the_given_one(slim, name):
    before = copy.deepcopy(slim.state_dict())
    detector = DETECTORS[name](slim, 3, SMALL)
    assert all(p.requires_grad for p in detector.parameters())
    sum(detector(*scenes()).values()).backward()
    still = [key for key, p in detector.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still
    torch.optim.SGD(detector.parameters(), lr=0.1).step()
    assert all(torch.equal(value, before[key]) for key, value in slim.state_dict().items())
    assert not any(p.requires_grad for p in slim.parameters())


@pytest.mark.parametrize("name", DETECTORS)
def test_every_batch_norm_takes_statistics_over_all_ranks_and_none_is_frozen(slim, name):
    detector = DETECTORS[name](slim, 3, SMALL)
    norms = [module for module in detector.modules() if "BatchNorm" in type(module).__name__]
    more = {"c4": 1, "fpn": 8 + 4, "mask-fpn": 8}[
        name
    ]  # the head's; two a map of the pyramid, four in the head
    assert len(norms) == sum(isinstance(module, nn.BatchNorm2d) for module in slim.modules()) + more
    assert all(
        isinstance(module, BatchNorm) and module.groups == 1 and module.training for module in norms
    )
    before = [module.running_mean.clone() for module in norms]
    detector(*scenes())
    assert not any(
        torch.equal(old, module.running_mean) for old, module in zip(before, norms, strict=True)
    )


@pytest.mark.parametrize("name", RESNETS)
def test_any_resnet_lends_its_own_widths(name):
    with torch.device("meta"):
        net = backbone(name)
        predictors = {
            kind: make(net, 7, SMALL).roi_heads.box_predictor for kind, make in DETECTORS.items()
        }
        found = maps(net, torch.zeros(1, 3, 64, 64))
    assert widths(net) == [one.shape[1] for one in found] and widths(net)[3] == net.width
    assert strides(net) == [64 // one.shape[2] for one in found]
    for kind, predictor in predictors.items():
        assert predictor.cls_score.out_features == 8 and predictor.bbox_pred.out_features == 32
        assert predictor.cls_score.in_features == (net.width if kind == "c4" else 4 * SMALL.width)


@pytest.mark.parametrize("kind", DETECTORS)
@pytest.mark.parametrize("stem", STEMS)
def test_any_stem_detects_where_its_maps_are_small_enough(stem, kind):
    net = backbone("resnet10-slim", stem=stem)
    assert strides(net) == [
        one * {"imagenet": 4, "half": 2, "small": 1}[stem] for one in (1, 2, 4, 8)
    ]
    detector = DETECTORS[kind](net, 2, SMALL)
    assert all(loss.isfinite() for loss in detector(*scenes()).values())
    (one,) = detector.eval()(scenes(1)[0])
    assert {"boxes", "labels", "scores"} <= one.keys() and ("masks" in one) == (kind == "mask-fpn")


def test_maps_as_large_as_photographs_are_refused():
    net = backbone("resnet10-slim", stem="small")
    with pytest.raises(
        ValueError, match=r"maps of 1/1 of the image, too large for images of 800 px: .* up to 400"
    ):
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
    detector, seen = DETECTORS["c4"](slim, 3, form).eval(), []
    detector.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    detector([torch.full((3, 64, 64), 0.6)])
    expected = torch.tensor([1.0, 1.6, 0.15]).view(1, 3, 1, 1).expand(1, 3, 64, 64)
    torch.testing.assert_close(seen[0], expected)


def test_a_crop_of_the_coordinates_holds_the_middles_of_its_bins():
    """On a map whose value is the place of its pixel in the image: cutting is exact, not half a pixel off."""
    step, size = 8, 7
    middles = (torch.arange(20) + 0.5) * step
    places = torch.stack([middles.view(1, -1).expand(20, 20), middles.view(-1, 1).expand(20, 20)])[
        None
    ]
    box = torch.tensor([[21.0, 33.0, 91.0, 117.0]])
    across, down = Crops(size, [step], 32)({"0": places}, [box], [(160, 160)])[0]
    bins = (torch.arange(size) + 0.5) / size
    torch.testing.assert_close(across, (21 + bins * 70).view(1, -1).expand(size, size))
    torch.testing.assert_close(down, (33 + bins * 84).view(-1, 1).expand(size, size))


def test_a_box_is_cut_from_the_map_of_its_size_in_its_own_image():
    """FPN's equation 1, k = floor(4 + log2(sqrt(wh) / 224)) within the maps 2 to 5."""
    levels = {
        str(number): torch.full((2, 1, 1600 >> number + 2, 1600 >> number + 2), 1.0)
        for number in range(4)
    }
    for number, one in enumerate(levels.values()):
        one[0], one[1] = number, number + 10
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
            "needs a ResNet with its four stages, .* is a Sequential",
        ),
        (backbone(nn.Conv2d(3, 4, 3)), "is a Conv2d"),
        (backbone("resnet10-slim", channels=1), "colour images, and the backbone takes 1 channels"),
    ],
)
def test_what_is_no_resnet_of_colour_images_is_refused(net, words):
    with pytest.raises(ValueError, match=words):
        DETECTORS["c4"](net, 3, SMALL)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sides": ()}, "short sides of images"),
        ({"sides": (900,), "longest": 800}, "the longest 800"),
        ({"anchors": (1, 2)}, "five anchors"),
        ({"anchors": (8, 8, 16, 32, 64)}, "five anchors"),
        ({"width": 0}, "a width and boxes"),
        ({"std": (0.0, 1.0, 1.0)}, "positive deviations"),
        ({"mean": (0.5,)}, "three means"),
    ],
)
def test_a_form_that_cannot_be_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Form(**wrong)


def test_a_detector_of_nothing_is_refused(slim):
    with pytest.raises(ValueError, match="a class of objects at least, got 0"):
        DETECTORS["c4"](slim, 0, SMALL)
