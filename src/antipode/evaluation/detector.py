"""Detectors around one of our ResNets, on torchvision's R-CNN: what MoCo, EqCo and MSBReg fine-tune.

The backbone given is copied and all of it is trained (Detectron2's FREEZE_AT 0). Every batch norm has one set of
statistics over all ranks: plain batch norm on one device, Detectron2's naive SyncBN on several, which MoCo asks for
because the exact one varied more. N images, M boxes, C channels, H W pixels. Numbers are Detectron2's (its
config/defaults.py and configs/Base-RCNN-FPN.yaml) and MoCo's (detection/configs/Base-RCNN-C4-BN.yaml).
"""

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import (
    FastRCNNConvFCHead,
    FastRCNNPredictor,
    TwoMLPHead,
)
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import box_area, roi_align

from antipode.data.sources.splits import IMAGENET_MEAN, IMAGENET_STD
from antipode.nets.backbone import ResNet, Wrapped
from antipode.nets.norm import convert

LAYERS = ("layer1", "layer2", "layer3", "layer4")
RATIOS = (0.5, 1.0, 2.0)  # height to width of an anchor
WIDEST = 400  # positions along the short side of the first map: 200 with ImageNet's stem, 400 with `half`


@dataclass(frozen=True)
class Form:
    """What a detector is besides its backbone, in pixels of the resized image. The defaults are Detectron2's.

    sides: short sides, one drawn for each training image, the last for the test; anchors: five side lengths; width:
    channels of the pyramid and of the heads on it (their fc have four times as many); rois: boxes an image trains the
    heads on.
    """

    sides: tuple[int, ...] = (800,)
    longest: int = 1333
    anchors: tuple[int, ...] = (32, 64, 128, 256, 512)
    width: int = 256
    rois: int = 512
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        if not self.sides or min(self.sides) < 32 or max(self.sides) > self.longest:
            raise ValueError(
                f"the short sides of images lie between 32 and the longest {self.longest}: {self.sides}"
            )
        if (
            len(self.anchors) != 5
            or list(self.anchors) != sorted(set(self.anchors))
            or self.anchors[0] < 1
        ):
            raise ValueError(
                f"a detector has five anchors that rise from 1 px or more, not {self.anchors}"
            )
        if self.width < 1 or self.rois < 1:
            raise ValueError(
                f"the heads need a width and boxes to train on, got {self.width} and {self.rois}"
            )
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(
                f"images have three means and positive deviations, not {self.mean} and {self.std}"
            )


class Trunk(nn.Sequential):
    """A ResNet up to and with layer3: images (N,3,H,W) -> map (N,out_channels,H/16,W/16) with ImageNet's stem."""

    def __init__(self, net: Any) -> None:
        names = ("conv1", "bn1", "relu", "maxpool", *LAYERS[:3])
        super().__init__(OrderedDict((name, getattr(net, name)) for name in names))
        self.out_channels = widths(net)[2]


class Crops(nn.Module):
    """What is in boxes, each cut from the map of its size: a list of N times (M,4) -> (N*M,C,size,size).

    Detectron2's ROIAlignV2: shifted by half a pixel of the map, as many samples as a bin has pixels. torchvision's
    own pooler cannot shift. A box of 224 px goes to the third of the pyramid's maps (FPN, eq. 1), that is of 7 times
    the smallest anchor.
    """

    def __init__(self, size: int, steps: list[int], smallest: int) -> None:
        super().__init__()
        self.size, self.steps, self.unit = size, steps, 1.75 * smallest

    def forward(
        self, maps: dict[str, Tensor], boxes: list[Tensor], shapes: list[tuple[int, int]]
    ) -> Tensor:
        """The crops of all images in a row; `shapes`, the images' sizes, are in torchvision's call only."""
        every = torch.cat(boxes)
        owner = torch.arange(len(boxes), device=every.device).repeat_interleave(
            torch.tensor([len(part) for part in boxes], device=every.device)
        )
        rois = torch.cat([owner[:, None].to(every), every], 1)
        level = (
            torch.log2(box_area(every).sqrt() / self.unit + 1e-6)
            .floor()
            .clamp(0, len(self.steps) - 1)
        )
        crops = maps["0"].new_zeros(len(rois), maps["0"].shape[1], self.size, self.size)
        for number, step in enumerate(self.steps):
            at = (level == number).nonzero().flatten()
            crops[at] = roi_align(
                maps[str(number)], rois[at], self.size, 1 / step, sampling_ratio=0, aligned=True
            )
        return crops


def c4(backbone: nn.Module, classes: int, form: Form) -> FasterRCNN:
    """Faster R-CNN whose proposals come from layer3 and whose head is layer4 and one more batch norm (MoCo's C4).

    `classes` counts the objects' classes, without the background. In training it maps a list of images (3,H,W) in
    [0,1] and their targets to losses, else images to boxes, labels and scores.
    """
    net = _resnet(backbone, form)
    head = nn.Sequential(
        OrderedDict(
            layer4=net.layer4,
            norm=nn.BatchNorm2d(
                widths(net)[3]
            ),  # after the last ReLU, before the mean: MoCo, Res5ROIHeadsExtraNorm
            pool=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
        )
    )
    detector = FasterRCNN(
        Trunk(net),
        rpn_anchor_generator=AnchorGenerator((form.anchors,), (RATIOS,)),
        rpn_pre_nms_top_n_train=12_000,
        rpn_pre_nms_top_n_test=6_000,
        rpn_post_nms_top_n_train=2_000,
        rpn_post_nms_top_n_test=1_000,
        box_head=head,
        box_predictor=_predictor(widths(net)[3], classes),
        **_images(form),
    )
    detector.roi_heads.box_roi_pool = Crops(14, strides(net)[2:3], form.anchors[0])
    return _trained(detector)


def fpn(backbone: nn.Module, classes: int, form: Form) -> FasterRCNN:
    """Faster R-CNN on a pyramid, with a head of four 3x3 convolutions and one fc, batch norm in all (EqCo B.5).

    Called as `c4`. The proposal network keeps its one convolution without norm, as in Detectron2 and cvpods.
    """
    net = _resnet(backbone, form)
    head = FastRCNNConvFCHead(
        (form.width, 7, 7), [form.width] * 4, [4 * form.width], norm_layer=nn.BatchNorm2d
    )
    detector = FasterRCNN(
        _pyramid(net, form),
        box_head=head,
        box_predictor=_predictor(4 * form.width, classes),
        **_pyramidal(form),
    )
    detector.roi_heads.box_roi_pool = Crops(7, strides(net), form.anchors[0])
    return _trained(detector)


def mask_fpn(backbone: nn.Module, classes: int, form: Form) -> MaskRCNN:
    """Mask R-CNN on a pyramid, batch norm in backbone and pyramid, Detectron2's heads without (MSBReg's).

    Called as `c4`, with masks (M,H,W) in the targets and probabilities (M,1,H,W) in what it finds.
    """
    net = _resnet(backbone, form)
    detector = MaskRCNN(
        _pyramid(net, form),
        box_head=TwoMLPHead(form.width * 7 * 7, 4 * form.width),
        box_predictor=_predictor(4 * form.width, classes),
        mask_head=MaskRCNNHeads(form.width, [form.width] * 4, 1),
        mask_predictor=MaskRCNNPredictor(form.width, form.width, classes + 1),
        **_pyramidal(form),
    )
    detector.roi_heads.box_roi_pool = Crops(7, strides(net), form.anchors[0])
    detector.roi_heads.mask_roi_pool = Crops(14, strides(net), form.anchors[0])
    return _trained(detector)


DETECTORS: dict[str, Callable[[nn.Module, int, Form], FasterRCNN]] = {
    "c4": c4,
    "fpn": fpn,
    "mask-fpn": mask_fpn,
}


def widths(net: Any) -> list[int]:
    """The channels of layer1 to layer4."""
    last = [
        [part for part in getattr(net, name).modules() if isinstance(part, nn.Conv2d)][-1]
        for name in LAYERS
    ]
    return [convolution.out_channels for convolution in last]


def strides(net: Any) -> list[int]:
    """Pixels from one position to the next in the maps of layer1 to layer4; 4, 8, 16, 32 with ImageNet's stem."""
    first: int = net.conv1.stride[0] * getattr(net.maxpool, "stride", 1)
    return [first << number for number in range(4)]


def _resnet(backbone: nn.Module, form: Form) -> Any:
    """A copy of the ResNet in a backbone, refused where it is none or its maps would be too large."""
    bare = backbone.net if isinstance(backbone, Wrapped) else backbone
    if not isinstance(bare, ResNet | torchvision.models.ResNet):
        raise ValueError(
            f"detection needs a ResNet with its four stages, and this backbone is a {type(bare).__name__}"
        )
    if bare.conv1.in_channels != 3:
        raise ValueError(
            f"detection is on colour images, and the backbone takes {bare.conv1.in_channels} channels"
        )
    most = WIDEST * strides(bare)[0]
    if max(form.sides) > most:
        raise ValueError(
            f"the backbone's stem leaves maps of 1/{strides(bare)[0]} of the image, too large for images of "
            f"{max(form.sides)} px: use short sides up to {most}, or a backbone with the stem imagenet"
        )
    return copy.deepcopy(bare)


def _pyramid(net: Any, form: Form) -> BackboneWithFPN:
    names = {layer: str(number) for number, layer in enumerate(LAYERS)}
    return BackboneWithFPN(net, names, widths(net), form.width, norm_layer=nn.BatchNorm2d)


def _pyramidal(form: Form) -> dict[str, Any]:
    """A detector's arguments on a pyramid: one anchor a map, proposals counted per map."""
    return {
        "rpn_anchor_generator": AnchorGenerator(
            tuple((anchor,) for anchor in form.anchors), (RATIOS,) * 5
        ),
        "rpn_pre_nms_top_n_train": 2_000,
        "rpn_pre_nms_top_n_test": 1_000,
        "rpn_post_nms_top_n_train": 1_000,
        "rpn_post_nms_top_n_test": 1_000,
        **_images(form),
    }


def _images(form: Form) -> dict[str, Any]:
    return {
        "min_size": form.sides,
        "max_size": form.longest,
        "image_mean": list(form.mean),
        "image_std": list(form.std),
        "box_batch_size_per_image": form.rois,
    }


def _predictor(width: int, classes: int) -> FastRCNNPredictor:
    """Fast R-CNN's last layers and their small start: torchvision's own start is that of any linear layer."""
    if classes < 1:
        raise ValueError(f"a detector needs a class of objects at least, got {classes}")
    predictor = FastRCNNPredictor(width, classes + 1)
    for layer, spread in ((predictor.cls_score, 0.01), (predictor.bbox_pred, 0.001)):
        nn.init.normal_(layer.weight, std=spread)
        nn.init.zeros_(layer.bias)
    return predictor


def _trained(detector: Any) -> Any:
    """The detector with one set of statistics over all ranks, and all of it to be trained."""
    return convert(detector, 1).requires_grad_(True).train()
