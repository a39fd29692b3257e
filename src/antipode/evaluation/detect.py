"""Transfer to detection and segmentation: a detector around the backbone, all of it fine-tuned, and its precision.

The metrics are those of Detectron2's evaluators, the network is torchvision's with Detectron2's numbers. What stays
different from Detectron2: a box loss that is smooth below 1/9 (there L1), and batches not grouped by aspect ratio.
"""

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

REFERENCE = 16  # images a step, to which all published schedules belong


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A fine-tuning schedule; the defaults are MoCo's for VOC.

    `iterations`, `falls`, `warmup` and `lr` are those of 16 images a step. With another `batch` the rule `linear`
    changes all four so that as many images are seen (Goyal et al. 2017), `fixed` none. `precise`: steps over which
    batch norm's statistics are averaged anew before the test. `sides`: short sides in pixels; the last is the test's.
    """

    detector: str = "c4"
    iterations: int = 24_000  # moco: detection/configs/pascal_voc_R_50_C4_24k.yaml; 23 epochs
    falls: tuple[int, ...] = (18_000, 22_000)  # ditto; x.1 each
    warmup: int = 100  # ditto; a line from lr/1000 (Detectron2's WARMUP_FACTOR)
    lr: float = (
        0.02  # moco: detection/configs/Base-RCNN-C4-BN.yaml, as all below where nothing is said
    )
    batch: int = REFERENCE
    rule: str = "linear"
    momentum: float = 0.9  # Detectron2's defaults, as the next two
    decay: float = 1e-4
    norm_decay: float = 0.0  # of the weights and biases of batch norms
    sides: tuple[int, ...] = tuple(range(480, 801, 32))  # moco: pascal_voc_R_50_C4_24k.yaml
    longest: int = 1333  # Detectron2's default
    flip: float = 0.5
    precise: int = 200  # TEST.PRECISE_BN is on
    anchors: tuple[int, ...] = Form.anchors
    width: int = Form.width
    rois: int = Form.rois

    def __post_init__(self) -> None:
        if self.detector not in DETECTORS or self.rule not in ("linear", "fixed"):
            names = ", ".join(DETECTORS)
            raise ValueError(
                f"the detector is one of {names} and the rule linear or fixed: {self.detector} {self.rule}"
            )
        if min(self.batch, self.iterations) < 1 or min(self.warmup, self.precise) < 0:
            raise ValueError(
                f"a schedule needs images and steps, got {self.batch} and {self.iterations}"
            )
        if not self.lr > 0 or not 0 <= self.flip <= 1:
            raise ValueError(
                f"a rate above 0 and flips between 0 and 1 are needed, got {self.lr} and {self.flip}"
            )

    def fitted(self) -> "Settings":
        """The schedule of this batch, by the rule."""
        if self.rule == "fixed" or self.batch == REFERENCE:
            return self
        share = self.batch / REFERENCE
        stretched = {
            "iterations": max(1, round(self.iterations / share)),
            "warmup": round(self.warmup / share),
        }
        falls = tuple(round(fall / share) for fall in self.falls)
        return replace(self, lr=self.lr * share, falls=falls, rule="fixed", **stretched)  # type: ignore[arg-type]

    def rate(self, step: int) -> float:
        """The learning rate at a step, counted from 0."""
        line = schedule.ramp(step / self.warmup, 0.001) if self.warmup else 1.0
        return self.lr * line * schedule.steps(step, self.falls)


VOC = Settings()  # MoCo's, and MSBReg's ("exactly same")
COCO = Settings(  # EqCo B.5: 12 epochs, 640 to 800 px, 4 convolutions and 1 fc
    detector="fpn",
    iterations=90_000,
    # the release's; the text says epochs 7 and 11 of 12, and a rate of .2, ten times the release's at this batch
    falls=(60_000, 80_000),
    warmup=1_000,  # not stated; Detectron2's and cvpods' default
    sides=tuple(range(640, 801, 32)),
)
# MSBReg's supplement, 2: 90k of batch 16, /10 after 60k and 80k; OpenSelfSup's 1x has a rate of .02, a warm-up of 1000
MASKS = replace(COCO, detector="mask-fpn", lr=0.05, warmup=50)


def run(task: Task, settings: Settings) -> Result:
    """Fine-tune a detector around a copy of the backbone; AP in percent, of the masks where it finds masks.

    COCO's metric on COCO, VOC 2007's on VOC, as Detectron2 has it.
    """
    settings, name, masks = settings.fitted(), task.splits.name, settings.detector == "mask-fpn"
    if name not in DETECTION:
        raise ValueError(
            f"detection needs boxes, which {', '.join(DETECTION)} have, but not {name}"
        )
    if name == "coco":
        library()  # better now than after a day of training
    train, test = (detection(name, part, task.root) for part in ("train", "test"))
    train = usable(train, spared=name != "coco", masks=masks)
    with torch.random.fork_rng([task.device] if task.device.type == "cuda" else []):
        torch.manual_seed(rng.number(task.seed, "detector") & ((1 << 63) - 1))
        net = build(task, len(train.classes), settings)
        torch.manual_seed(rng.number(task.seed, "proposals", dist.rank()) & ((1 << 63) - 1))
        fine_tune(net, train, settings, seed=task.seed)
        found = find(net, test)
    more = (
        coco_scores(found, test, masks) if name == "coco" else voc(found, test.things, test.classes)
    )
    unit = "% mask AP" if masks else "% AP"
    return Result(
        more.pop("AP"), unit, asdict(settings), len(test), more, "val" if name == "coco" else "test"
    )


def build(task: Task, classes: int, settings: Settings) -> Any:
    """The detector of the settings around a copy of the task's backbone, on its device."""
    normal = {"mean": tuple(task.splits.mean), "std": tuple(task.splits.std)}
    form = Form(
        settings.sides, settings.longest, settings.anchors, settings.width, settings.rois, **normal
    )
    return DETECTORS[settings.detector](task.backbone, classes, form).to(task.device)


def fine_tune(net: Any, objects: Detection, settings: Settings, *, seed: int) -> list[float]:
    """Train all of a detector in place; the losses of the steps."""
    device, losses = next(net.parameters()).device, []
    optimiser, ddp = _optimiser(net, settings), dist.parallel(net.train(), unused=False)
    total = settings.iterations + settings.precise
    stream = batches(objects, batch=settings.batch, count=total, flip=settings.flip, seed=seed)
    with bar(total, "training a detector", least=20) as done:
        for step, batch in enumerate(stream):
            moved = _moved(batch, device)
            if step < settings.iterations:
                for group in optimiser.param_groups:
                    group["lr"] = settings.rate(step)
                losses.append(_step(ddp, optimiser, moved, step))
            else:
                _gather_statistics(net, moved, step - settings.iterations)
            done(1)
    return losses


def _optimiser(net: nn.Module, settings: Settings) -> torch.optim.SGD:
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
    loss = sum(ddp(*batch).values())
    assert isinstance(loss, Tensor)
    value = float(loss.detach())  # proposals make the host wait anyway
    if not torch.isfinite(loss):
        raise ValueError(
            f"the detector's loss is {value} at iteration {step}: use a smaller rate or a longer warm-up"
        )
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return value


@torch.no_grad()
def _gather_statistics(net: nn.Module, batch: Batch, seen: int) -> None:
    """Make batch norm's statistics the plain mean over this batch and `seen` others of the same weights."""
    norms = [module for module in net.modules() if isinstance(module, BatchNorm)]
    before = [module.momentum for module in norms]
    for module in norms:
        module.momentum = 1 / (seen + 1)
    net(*batch)
    for module, momentum in zip(norms, before, strict=True):
        module.momentum = momentum


def _moved(batch: Batch, device: torch.device) -> Batch:
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
    """What a detector finds in each image, one image at a time."""
    device, found, training = next(net.parameters()).device, [], net.training
    net.eval()
    with bar(len(objects), "finding objects", least=20) as done:
        for image in images(objects):
            (one,) = net([image.to(device).float() / 255])
            masks = (
                packed((one["masks"][:, 0] > 0.5).to(torch.uint8).cpu()) if "masks" in one else None
            )
            boxes, labels, scores = (one[name].cpu() for name in ("boxes", "labels", "scores"))
            found.append(Found(boxes, labels - 1, scores, (image.shape[1], image.shape[2]), masks))
            done(1)
    net.train(training)
    return found


def coco_scores(found: list[Found], objects: Detection, masks: bool) -> dict[str, Any]:
    """COCO's figures of the boxes, or those of the masks with the boxes' beside them."""
    boxes: dict[str, Any] = {**coco(found, objects)}
    return (
        coco(found, objects, "segm") | {f"box {name}": value for name, value in boxes.items()}
        if masks
        else boxes
    )
