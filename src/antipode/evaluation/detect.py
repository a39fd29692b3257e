"""Transfer to detection and segmentation: fine-tune a detector on the backbone and report its AP.

The metrics are those of Detectron2's evaluators. The network is torchvision's R-CNN with
Detectron2's hyper-parameters. Two differences from Detectron2 remain:

- the box loss is smooth L1 with beta 1/9, where Detectron2 uses L1;
- batches are not grouped by aspect ratio.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from antipode import dist, rng, schedule
from antipode.data.progress import bar
from antipode.data.sources.annotated import DETECTION, Detection, detection
from antipode.evaluation.detector import DETECTORS, Form
from antipode.evaluation.objects import Batch, batches, images, usable
from antipode.evaluation.precision import Found, coco, library, packed, voc
from antipode.evaluation.score import Result
from antipode.evaluation.task import Task
from antipode.nets.norm import BatchNorm

REFERENCE = 16  # images per step in all published schedules


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A fine-tuning schedule. The defaults are MoCo's for VOC.

    `iterations`, `falls`, `warmup` and `lr` are given for 16 images per step. `rule` says what
    happens to them with another `batch`: "linear" scales all four, so that training sees the same
    number of images (Goyal et al. 2017); "fixed" leaves them unchanged.

    Args:
        detector: the architecture, a key of `DETECTORS`.
        iterations: the number of training steps.
        falls: the steps at which the learning rate is multiplied by 0.1.
        warmup: the number of steps in which the learning rate rises linearly to `lr`.
        batch: images per step, over all ranks.
        decay: the weight decay of all parameters except those of batch norms.
        norm_decay: the weight decay of the weights and biases of batch norms.
        sides: the short sides of resized images in pixels. Each training image gets a random one,
            test images get the last one.
        longest: the largest long side of resized images in pixels.
        flip: the probability that a training image is mirrored.
        precise: the number of batches over which the running statistics of batch norm are
            recomputed after training.
        anchors, width, rois: see `Form`.
    """

    # "moco" is the repository facebookresearch/moco. `lr` and the values below it that have no
    # comment are from moco: detection/configs/Base-RCNN-C4-BN.yaml.
    detector: str = "c4"
    iterations: int = 24_000  # moco: detection/configs/pascal_voc_R_50_C4_24k.yaml; 23 epochs
    falls: tuple[int, ...] = (18_000, 22_000)  # same file
    warmup: int = 100  # same file; starts at lr/1000 (Detectron2's WARMUP_FACTOR)
    lr: float = 0.02
    batch: int = REFERENCE
    rule: str = "linear"
    momentum: float = 0.9  # Detectron2's default
    decay: float = 1e-4  # Detectron2's default
    norm_decay: float = 0.0  # Detectron2's default
    sides: tuple[int, ...] = tuple(range(480, 801, 32))  # moco: pascal_voc_R_50_C4_24k.yaml
    longest: int = 1333  # Detectron2's default
    flip: float = 0.5
    precise: int = 200  # Base-RCNN-C4-BN.yaml sets TEST.PRECISE_BN
    anchors: tuple[int, ...] = Form.anchors
    width: int = Form.width
    rois: int = Form.rois

    def __post_init__(self) -> None:
        if self.detector not in DETECTORS:
            raise ValueError(
                f"detector must be one of {', '.join(DETECTORS)}, got {self.detector!r}"
            )
        if self.rule not in ("linear", "fixed"):
            raise ValueError(f"rule must be linear or fixed, got {self.rule!r}")
        if min(self.batch, self.iterations) < 1:
            raise ValueError(
                f"batch and iterations must be at least 1, got {self.batch} and {self.iterations}"
            )
        if min(self.warmup, self.precise) < 0:
            raise ValueError(
                f"warmup and precise must not be negative, got {self.warmup} and {self.precise}"
            )
        if not self.lr > 0 or not 0 <= self.flip <= 1:
            raise ValueError(
                f"lr must be above 0 and flip between 0 and 1, got {self.lr} and {self.flip}"
            )

    def fitted(self) -> "Settings":
        """Return the settings with the schedule scaled to `batch` according to `rule`."""
        if self.rule == "fixed" or self.batch == REFERENCE:
            return self
        scale = self.batch / REFERENCE
        lengths = {
            "iterations": max(1, round(self.iterations / scale)),
            "warmup": round(self.warmup / scale),
        }
        falls = tuple(round(fall / scale) for fall in self.falls)
        changes: dict[str, Any] = {"falls": falls, "rule": "fixed", **lengths}
        return replace(self, lr=self.lr * scale, **changes)

    def rate(self, step: int) -> float:
        """Return the learning rate at a step, counted from 0."""
        warmup = schedule.ramp(step / self.warmup, 0.001) if self.warmup else 1.0
        return self.lr * warmup * schedule.steps(step, self.falls)


# MoCo's settings for VOC. MSBReg writes that it uses "exactly same" settings.
VOC = Settings()
# EqCo's release: 12 epochs, short sides of 640 to 800 px, a head of 4 convolutions and 1 fc.
COCO = Settings(
    detector="fpn",
    iterations=90_000,
    falls=(60_000, 80_000),
    warmup=1_000,  # not stated; the default of Detectron2 and cvpods
    sides=tuple(range(640, 801, 32)),
)
# EqCo, appendix B.5, as printed: a learning rate of 0.2, times .1 at epochs 7 and 11 of 12. The
# batch size is not stated. 0.2 is ten times the learning rate of the release for 16 images.
COCO_AS_PRINTED = replace(COCO, lr=0.2, falls=(52_500, 82_500))
# MSBReg, supplement, section 2: 90k iterations at batch size 16, learning rate divided by 10 after
# 60k and 80k. OpenSelfSup's 1x schedule instead has a learning rate of 0.02 and a warm-up of 1000
# iterations.
MASKS = replace(COCO, detector="mask-fpn", lr=0.05, warmup=50)


def run(task: Task, settings: Settings) -> Result:
    """Fine-tune a detector on a copy of the backbone and return its AP in percent.

    The AP is that of the masks if the detector predicts masks, else that of the boxes. COCO uses
    COCO's metric; VOC uses the metric of VOC 2007 as implemented in Detectron2.
    """
    settings = settings.fitted()
    name = task.splits.name
    masks = settings.detector == "mask-fpn"
    if name not in DETECTION:
        raise ValueError(
            f"detection needs a data set with boxes ({', '.join(DETECTION)}), but {name} has none"
        )
    if name == "coco":
        library()  # raises an error now rather than after a day of training
    train, test = (detection(name, part, task.root) for part in ("train", "test"))
    train = usable(train, spared=name != "coco", masks=masks)
    with torch.random.fork_rng([task.device] if task.device.type == "cuda" else []):
        torch.manual_seed(rng.number(task.seed, "detector") & ((1 << 63) - 1))
        net = build(task, len(train.classes), settings)
        torch.manual_seed(rng.number(task.seed, "proposals", dist.rank()) & ((1 << 63) - 1))
        fine_tune(net, train, settings, seed=task.seed)
        detections = find(net, test)
    if name == "coco":
        metrics = coco_scores(detections, test, masks)
    else:
        metrics = voc(detections, test.things, test.classes)
    return Result(
        metrics.pop("AP"),
        "% mask AP" if masks else "% AP",
        asdict(settings),
        len(test),
        metrics,
        "val" if name == "coco" else "test",
    )


def build(task: Task, classes: int, settings: Settings) -> Any:
    """Build the detector on a copy of the task's backbone, on the task's device."""
    form = Form(
        settings.sides,
        settings.longest,
        settings.anchors,
        settings.width,
        settings.rois,
        mean=tuple(task.splits.mean),
        std=tuple(task.splits.std),
    )
    return DETECTORS[settings.detector](task.backbone, classes, form).to(task.device)


def fine_tune(net: Any, objects: Detection, settings: Settings, *, seed: int) -> list[float]:
    """Train all parameters of a detector in place and return the loss of every step.

    After the last step, the running statistics of batch norm are recomputed over
    `settings.precise` further batches.
    """
    device = next(net.parameters()).device
    optimiser = _optimiser(net, settings)
    ddp = dist.parallel(net.train(), unused=False)
    losses = []
    total = settings.iterations + settings.precise
    stream = batches(objects, batch=settings.batch, count=total, flip=settings.flip, seed=seed)
    with bar(total, "training the detector", least=20) as advance:
        for step, batch in enumerate(stream):
            on_device = _to_device(batch, device)
            if step < settings.iterations:
                for group in optimiser.param_groups:
                    group["lr"] = settings.rate(step)
                losses.append(_step(ddp, optimiser, on_device, step))
            else:
                _update_statistics(net, on_device, step - settings.iterations)
            advance(1)
    return losses


def _optimiser(net: nn.Module, settings: Settings) -> torch.optim.SGD:
    """Return SGD with separate weight decays for batch norms and all other parameters."""
    norms = {
        id(p)
        for module in net.modules()
        if isinstance(module, BatchNorm)
        for p in module.parameters()
    }
    groups = [
        {
            "params": [p for p in net.parameters() if id(p) not in norms],
            "weight_decay": settings.decay,
        },
        {
            "params": [p for p in net.parameters() if id(p) in norms],
            "weight_decay": settings.norm_decay,
        },
    ]
    return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum)


def _step(ddp: nn.Module, optimiser: torch.optim.SGD, batch: Batch, step: int) -> float:
    """Take one optimisation step and return the loss, the mean over ranks."""
    loss = sum(ddp(*batch).values())
    assert isinstance(loss, Tensor)
    # A device synchronisation; proposal selection makes one anyway. The mean over ranks is not
    # finite on all of them, so that none waits for another that has stopped.
    value = float(dist.mean(loss.detach()))
    if not math.isfinite(value):
        raise ValueError(
            f"the detector's loss is {value} at iteration {step}: "
            "use a smaller learning rate or a longer warm-up"
        )
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return value


@torch.no_grad()
def _update_statistics(net: nn.Module, batch: Batch, count: int) -> None:
    """Add a batch to the running statistics of batch norm, which are the mean of `count` batches.

    The weights must not change between these batches.
    """
    norms = [module for module in net.modules() if isinstance(module, BatchNorm)]
    momenta = [module.momentum for module in norms]
    for module in norms:
        module.momentum = 1 / (count + 1)
    net(*batch)
    for module, momentum in zip(norms, momenta, strict=True):
        module.momentum = momentum


def _to_device(batch: Batch, device: torch.device) -> Batch:
    """Move a batch to the device, with images as floats in [0,1]."""
    pictures, targets = batch
    return (
        [picture.to(device, non_blocking=True).float() / 255 for picture in pictures],
        [
            {name: value.to(device, non_blocking=True) for name, value in target.items()}
            for target in targets
        ],
    )


@torch.no_grad()
def find(net: Any, objects: Detection) -> list[Found]:
    """Return the detections in every image. The detector sees one image at a time.

    The ranks share the images, and every rank gets all detections.
    """
    device = next(net.parameters()).device
    training = net.training
    net.eval()
    detections = []
    size = -(-len(objects) // dist.world())
    ours = range(len(objects))[dist.rank() * size : (dist.rank() + 1) * size]
    with bar(len(ours), "detecting objects", least=20) as advance:
        for image in images(objects, ours):
            (output,) = net([image.to(device).float() / 255])
            boxes, labels, scores = (output[name].cpu() for name in ("boxes", "labels", "scores"))
            masks = None
            if "masks" in output:
                masks = packed((output["masks"][:, 0] > 0.5).to(torch.uint8).cpu())
            shape = (image.shape[1], image.shape[2])
            detections.append(Found(boxes, labels - 1, scores, shape, masks))
            advance(1)
    net.train(training)
    return [found for part in dist.gather_objects(detections) for found in part]


def coco_scores(found: list[Found], objects: Detection, masks: bool) -> dict[str, Any]:
    """Return COCO's metrics of the boxes, or those of the masks and, as "box ...", of the boxes."""
    boxes: dict[str, Any] = {**coco(found, objects)}
    if not masks:
        return boxes
    return coco(found, objects, "segm") | {f"box {name}": value for name, value in boxes.items()}
