"""R-CNN detectors on a ResNet backbone: the networks that MoCo, EqCo and MSBReg fine-tune.

The detectors are torchvision's. The given backbone is copied, and all of its layers are trained
(Detectron2's FREEZE_AT 0). Every batch norm has one set of statistics over all ranks. On one device
this is plain batch norm; on several it is Detectron2's naive SyncBN, which MoCo uses because exact
SyncBN varied more.

Hyper-parameters are from Detectron2 (config/defaults.py and configs/Base-RCNN-FPN.yaml) and MoCo
(detection/configs/Base-RCNN-C4-BN.yaml). N images, M boxes, C channels, H W pixels.
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
# Largest allowed short side of layer1's feature map. Images of 800 px give 200 with the stem
# `imagenet` and 400 with the stem `half`.
WIDEST = 400


@dataclass(frozen=True)
class Form:
    """The hyper-parameters of a detector besides its backbone. The defaults are Detectron2's.

    Args:
        sides: the short sides of resized images in pixels. Each training image gets a random one,
            test images get the last one.
        longest: the largest long side of resized images in pixels.
        anchors: the five side lengths of the anchors, in pixels of the resized image.
        width: the channels of the feature pyramid and of the heads on it. The fully connected
            layers of these heads have four times as many.
        rois: the number of boxes per image on which the heads are trained.
        mean, std: the mean and standard deviation by which images in [0,1] are normalised.
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
                f"short sides must lie between 32 and longest ({self.longest}), got {self.sides}"
            )
        if (
            len(self.anchors) != 5
            or list(self.anchors) != sorted(set(self.anchors))
            or self.anchors[0] < 1
        ):
            raise ValueError(
                f"anchors must be five increasing side lengths of at least 1 px, got {self.anchors}"
            )
        if self.width < 1 or self.rois < 1:
            raise ValueError(f"width and rois must be at least 1, got {self.width} and {self.rois}")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(
                "mean must have three values and std three positive values, "
                f"got {self.mean} and {self.std}"
            )


class Trunk(nn.Sequential):
    """A ResNet up to and including layer3.

    Maps images (N,3,H,W) to a feature map. With ImageNet's stem, the map is
    (N,out_channels,H/16,W/16).
    """

    def __init__(self, net: Any) -> None:
        names = ("conv1", "bn1", "relu", "maxpool", *LAYERS[:3])
        super().__init__(OrderedDict((name, getattr(net, name)) for name in names))
        self.out_channels = widths(net)[2]


class Crops(nn.Module):
    """RoI pooling: maps N lists of boxes (M,4) to their features (N*M,C,size,size).

    This is Detectron2's ROIAlignV2: coordinates are shifted by half a pixel of the feature map, and
    every bin takes as many samples as it covers pixels. torchvision's own pooler cannot shift.
    Each box is cut from the level of the pyramid that fits its size (FPN, eq. 1). A box of 7 times
    the smallest anchor, which is 224 px by default, is cut from the third level.

    Args:
        size: the side of the output, in bins.
        steps: the stride of each level of the pyramid, in pixels.
        smallest: the smallest anchor, in pixels.
    """

    def __init__(self, size: int, steps: list[int], smallest: int) -> None:
        super().__init__()
        self.size = size
        self.steps = steps
        # log2(7 / 1.75) = 2: a box of 7 times the smallest anchor gets level 2, the third
        self.unit = 1.75 * smallest

    def forward(
        self, maps: dict[str, Tensor], boxes: list[Tensor], shapes: list[tuple[int, int]]
    ) -> Tensor:
        """Return the crops of all images, concatenated.

        `shapes` is unused; torchvision passes it to every pooler.
        """
        all_boxes = torch.cat(boxes)
        image_index = torch.arange(len(boxes), device=all_boxes.device).repeat_interleave(
            torch.tensor([len(part) for part in boxes], device=all_boxes.device)
        )
        rois = torch.cat([image_index[:, None].to(all_boxes), all_boxes], 1)
        level = (
            torch.log2(box_area(all_boxes).sqrt() / self.unit + 1e-6)
            .floor()
            .clamp(0, len(self.steps) - 1)
        )
        crops = maps["0"].new_zeros(len(rois), maps["0"].shape[1], self.size, self.size)
        for number, step in enumerate(self.steps):
            rows = (level == number).nonzero().flatten()
            crops[rows] = roi_align(
                maps[str(number)], rois[rows], self.size, 1 / step, sampling_ratio=0, aligned=True
            )
        return crops


def c4(backbone: nn.Module, classes: int, form: Form) -> FasterRCNN:
    """Build MoCo's C4 detector: Faster R-CNN with proposals from layer3.

    The head is layer4 with one more batch norm. `classes` is the number of object classes, without
    the background. In training mode the detector maps a list of images (3,H,W) in [0,1] and their
    targets to losses; in eval mode it maps images to boxes, labels and scores.
    """
    net = _resnet(backbone, form)
    head = nn.Sequential(
        OrderedDict(
            layer4=net.layer4,
            # after the last ReLU and before the mean, as in MoCo's Res5ROIHeadsExtraNorm
            norm=nn.BatchNorm2d(widths(net)[3]),
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
        **_common(form),
    )
    detector.roi_heads.box_roi_pool = Crops(14, strides(net)[2:3], form.anchors[0])
    return _trainable(detector)


def fpn(backbone: nn.Module, classes: int, form: Form) -> FasterRCNN:
    """Build EqCo's detector (appendix B.5): Faster R-CNN on a feature pyramid.

    The head has four 3x3 convolutions and one fully connected layer. Backbone, pyramid and head
    have batch norm. The proposal network has one convolution without batch norm, as in Detectron2
    and cvpods. Arguments, inputs and outputs are those of `c4`.
    """
    net = _resnet(backbone, form)
    detector = FasterRCNN(
        _pyramid(net, form),
        box_head=_normalised_head(form),
        box_predictor=_predictor(4 * form.width, classes),
        **_on_pyramid(form),
    )
    detector.roi_heads.box_roi_pool = Crops(7, strides(net), form.anchors[0])
    return _trainable(detector)


def mask_fpn(backbone: nn.Module, classes: int, form: Form) -> MaskRCNN:
    """Build MSBReg's detector: Mask R-CNN on a feature pyramid.

    Backbone and pyramid have batch norm; the heads are Detectron2's, without batch norm. Arguments,
    inputs and outputs are those of `c4`. The targets also have masks (M,H,W), and the outputs mask
    probabilities (M,1,H,W).
    """
    net = _resnet(backbone, form)
    detector = MaskRCNN(
        _pyramid(net, form),
        box_head=TwoMLPHead(form.width * 7 * 7, 4 * form.width),
        box_predictor=_predictor(4 * form.width, classes),
        mask_head=MaskRCNNHeads(form.width, [form.width] * 4, 1),
        mask_predictor=MaskRCNNPredictor(form.width, form.width, classes + 1),
        **_on_pyramid(form),
    )
    detector.roi_heads.box_roi_pool = Crops(7, strides(net), form.anchors[0])
    detector.roi_heads.mask_roi_pool = Crops(14, strides(net), form.anchors[0])
    return _trainable(detector)


DETECTORS: dict[str, Callable[[nn.Module, int, Form], FasterRCNN]] = {
    "c4": c4,
    "fpn": fpn,
    "mask-fpn": mask_fpn,
}


def widths(net: Any) -> list[int]:
    """Return the number of output channels of layer1 to layer4."""
    last_convolutions = [
        [part for part in getattr(net, name).modules() if isinstance(part, nn.Conv2d)][-1]
        for name in LAYERS
    ]
    return [convolution.out_channels for convolution in last_convolutions]


def strides(net: Any) -> list[int]:
    """Return the strides of layer1 to layer4 in image pixels: 4, 8, 16, 32 with ImageNet's stem."""
    first: int = net.conv1.stride[0] * getattr(net.maxpool, "stride", 1)
    return [first << number for number in range(4)]


def _resnet(backbone: nn.Module, form: Form) -> Any:
    """Return a copy of the ResNet in a backbone.

    Raises ValueError if the backbone is no ResNet, if it does not take colour images, or if its
    feature maps would be too large.
    """
    bare = backbone.net if isinstance(backbone, Wrapped) else backbone
    if not isinstance(bare, ResNet | torchvision.models.ResNet):
        raise ValueError(
            "detection needs a ResNet with its four stages, "
            f"but the backbone is a {type(bare).__name__}"
        )
    if bare.conv1.in_channels != 3:
        raise ValueError(
            "detection needs a backbone for images of 3 channels, "
            f"but this one takes {bare.conv1.in_channels}"
        )
    stride = strides(bare)[0]
    limit = WIDEST * stride
    if max(form.sides) > limit:
        raise ValueError(
            f"the feature maps of the backbone (1/{stride} of the image side) are too large for "
            f"images of {max(form.sides)} px: use short sides of at most {limit} px, or a backbone "
            "with the stem imagenet"
        )
    return copy.deepcopy(bare)


def _pyramid(net: Any, form: Form) -> BackboneWithFPN:
    """Return the feature pyramid on layer1 to layer4."""
    names = {layer: str(number) for number, layer in enumerate(LAYERS)}
    return BackboneWithFPN(net, names, widths(net), form.width, norm_layer=nn.BatchNorm2d)


def _on_pyramid(form: Form) -> dict[str, Any]:
    """Return torchvision's keyword arguments for a detector on a pyramid.

    Each level has one anchor size. The limits on proposals apply to each level.
    """
    return {
        "rpn_anchor_generator": AnchorGenerator(
            tuple((anchor,) for anchor in form.anchors), (RATIOS,) * 5
        ),
        "rpn_pre_nms_top_n_train": 2_000,
        "rpn_pre_nms_top_n_test": 1_000,
        "rpn_post_nms_top_n_train": 1_000,
        "rpn_post_nms_top_n_test": 1_000,
        **_common(form),
    }


def _common(form: Form) -> dict[str, Any]:
    """Return torchvision's keyword arguments that all detectors share."""
    return {
        "min_size": form.sides,
        "max_size": form.longest,
        "image_mean": list(form.mean),
        "image_std": list(form.std),
        "box_batch_size_per_image": form.rois,
    }


def _normalised_head(form: Form) -> nn.Sequential:
    """Return a head of four convolutions and one fully connected layer, each with batch norm.

    torchvision's head has batch norm after the convolutions only.
    """
    convolutions = FastRCNNConvFCHead(
        (form.width, 7, 7), [form.width] * 4, [], norm_layer=nn.BatchNorm2d
    )
    wide = 4 * form.width
    return nn.Sequential(
        convolutions,
        nn.Linear(form.width * 7 * 7, wide, bias=False),  # batch norm has the bias
        nn.BatchNorm1d(wide),
        nn.ReLU(inplace=True),
    )


def _predictor(width: int, classes: int) -> FastRCNNPredictor:
    """Return Fast R-CNN's output layers with its small initial weights.

    torchvision initialises them like any other linear layer.
    """
    if classes < 1:
        raise ValueError(f"a detector needs at least one class of objects, got {classes}")
    predictor = FastRCNNPredictor(width, classes + 1)
    for layer, std in ((predictor.cls_score, 0.01), (predictor.bbox_pred, 0.001)):
        nn.init.normal_(layer.weight, std=std)
        nn.init.zeros_(layer.bias)
    return predictor


def _trainable(detector: Any) -> Any:
    """Return the detector in training mode, with all parameters trainable.

    Every batch norm is replaced by one with a single set of statistics over all ranks.
    """
    return convert(detector, 1).requires_grad_(True).train()
