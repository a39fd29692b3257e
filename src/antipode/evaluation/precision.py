"""Average precision of detected boxes and masks, with the metrics of VOC and of COCO.

VOC's metric is implemented here; COCO's is that of pycocotools. They differ in three ways:

- VOC compares a detection only with the object it overlaps most. COCO compares it with the objects
  that no other detection has matched.
- VOC requires an overlap above the threshold. COCO also accepts the threshold itself.
- VOC averages the precision at 11 recalls, COCO at 101.

M objects, D detections, H W pixels. Overlap is the intersection over union (IoU).
"""

import contextlib
import io
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.ops import box_iou

from antipode.data.sources.annotated import Detection, Thing

OVERLAPS = [percent / 100 for percent in range(50, 100, 5)]  # IoU thresholds
STATISTICS = ("AP", "AP50", "AP75", "APs", "APm", "APl")  # the first six of COCO's twelve
NO_OBJECTS = "the test images have no object to detect"


class Found(NamedTuple):
    """The detections in one image."""

    boxes: Tensor  # (D,4) x0 y0 x1 y1
    labels: Tensor  # (D,), from 0
    scores: Tensor  # (D,)
    size: tuple[int, int]  # H W of the image
    masks: list[dict[str, Any]] | None = None  # D masks in COCO's compressed run-length encoding


def average_precision(
    scores: Tensor, right: Tensor, objects: int, *, points: int | None = 11
) -> float:
    """Return the average precision in [0,1]: the area under the precision-recall curve.

    The precision at a recall is the best precision at that recall or a higher one.

    Args:
        scores: the scores (D,) of the detections.
        right: whether each detection is correct (D,).
        objects: the number of objects to detect.
        points: the number of evenly spaced recalls at which the precision is averaged (11 in
            VOC 2007), or None for the area under the whole curve (VOC 2010 and later).
    """
    if objects < 1 or (points is not None and points < 2):
        raise ValueError(
            "average precision needs at least one object and two points, "
            f"got {objects} and {points}"
        )
    if len(scores) != len(right):
        raise ValueError(
            f"scores and right must have the same length, got {len(scores)} and {len(right)}"
        )
    hits = right[torch.argsort(scores, descending=True, stable=True)].long().cumsum(0)
    precision = hits.double() / torch.arange(1, len(hits) + 1)
    best = precision.flip(0).cummax(0).values.flip(0) if len(hits) else precision
    if points is None:
        is_hit = hits.diff(prepend=hits.new_zeros(1))
        return float((is_hit * best).sum() / objects)
    # Recalls are compared as integers: 3 of 10 objects reach the recall 0.3, but 0.3 is less than
    # 0.1 + 0.2 in floating point.
    reached = [
        ((points - 1) * hits >= point * objects).nonzero().flatten() for point in range(points)
    ]
    return float(sum(best[indices[0]] for indices in reached if len(indices)) / points)


def judged(boxes: Tensor, scores: Tensor, truth: Tensor, spared: Tensor) -> tuple[Tensor, Tensor]:
    """Return which detections are correct (10,D) and which are counted (10,D), by VOC's rules.

    The rows are the overlaps in `OVERLAPS`. All detections are of one image and class. Each is
    assigned to the object it overlaps most. Of those assigned to one object with an overlap above
    the threshold, the one with the highest score is correct and the others are wrong. If that
    object is difficult, none of them is counted.

    Args:
        boxes: the detected boxes (D,4).
        scores: their scores (D,).
        truth: the boxes of the objects (M,4).
        spared: whether each object is difficult (M,).
    """
    if not len(truth) or not len(boxes):
        right = torch.zeros(len(OVERLAPS), len(boxes), dtype=torch.bool)
        return right, ~right
    order = torch.argsort(scores, descending=True, stable=True)
    overlap, nearest = box_iou(boxes[order], truth).max(1)
    above = overlap > torch.tensor(OVERLAPS)[:, None]
    counts = ~(above & spared[nearest])
    # whether detection d is a candidate for object m (10,M,D)
    candidates = (nearest == torch.arange(len(truth))[:, None]) & (above & counts)[:, None]
    right = (candidates & (candidates.cumsum(2) == 1)).any(1)
    inverse = torch.argsort(order)
    return right[:, inverse], counts[:, inverse]


def voc(
    found: Sequence[Found], things: Sequence[Sequence[Thing]], classes: Sequence[str]
) -> dict[str, Any]:
    """Return AP, AP50 and AP75 in percent, with the 11-point average precision of VOC 2007.

    Detectron2 reports these numbers for VOC, and so do MoCo's tables. AP is the mean over the
    overlaps 0.5 to 0.95. Classes without an object in the images are left out. Detectron2 first
    rounds scores to three digits and boxes to a tenth of a pixel; this function does not.
    """
    table = {}
    for label, name in enumerate(classes):
        rows = [_of_class(*pair, label) for pair in zip(found, things, strict=True)]
        objects = sum(int((~spared).sum()) for *_, spared in rows)
        if objects:
            table[name] = _average_precisions(rows, objects)
    if not table:
        raise ValueError(NO_OBJECTS)
    mean = 100 * np.mean(list(table.values()), axis=0)
    return {
        "AP": float(mean.mean()),
        "AP50": float(mean[0]),
        "AP75": float(mean[5]),
        "AP50 of classes": {name: 100 * values[0] for name, values in table.items()},
    }


Row = tuple[Tensor, Tensor, Tensor, Tensor]  # boxes (D,4), scores (D,), truth (M,4), spared (M,)


def _of_class(found: Found, things: Sequence[Thing], label: int) -> Row:
    """Return the detections and the objects of one class in one image."""
    objects = [thing for thing in things if thing.label == label]
    truth = torch.tensor([thing.box for thing in objects], dtype=torch.float32).reshape(-1, 4)
    spared = torch.tensor([thing.spared for thing in objects], dtype=torch.bool)
    detected = found.labels == label
    return found.boxes[detected], found.scores[detected], truth, spared


def _average_precisions(rows: list[Row], objects: int) -> list[float]:
    """Return the average precision of one class at each overlap in `OVERLAPS`."""
    scores = torch.cat([scores for _, scores, _, _ in rows])
    parts = [judged(*row) for row in rows]
    right, counts = (torch.cat(column, 1) for column in zip(*parts, strict=True))
    return [
        average_precision(scores[counted], correct[counted], objects)
        for correct, counted in zip(right, counts, strict=True)
    ]


def library() -> Any:
    """Return the module pycocotools. Raises ValueError if it is not installed."""
    try:
        for part in ("coco", "cocoeval", "mask"):
            import_module(f"pycocotools.{part}")
        return import_module("pycocotools")
    except ImportError:
        raise ValueError(
            "COCO's metrics need pycocotools: pip install 'antipode[detection]'"
        ) from None


def drawn(outlines: Sequence[Any], height: int, width: int) -> Tensor:
    """Return the masks uint8 (M,H,W) of outlines in COCO's format.

    They are the masks that COCO's metric compares with, pixel by pixel. Pillow also fills the
    pixels on the outline: its masks are a ninth larger on COCO, and a fifth larger for small
    objects.
    """
    tools = library().mask
    masks = torch.zeros(len(outlines), height, width, dtype=torch.uint8)
    for mask, outline in zip(masks, outlines, strict=True):
        shape = outline
        if not isinstance(outline, dict):
            shape = [polygon for polygon in outline if len(polygon) >= 6]  # three corners or more
        if shape:
            runs = tools.frPyObjects(shape, height, width)
            merged = tools.merge(runs) if isinstance(runs, list) else runs
            mask.copy_(torch.from_numpy(tools.decode(merged)))
    return masks


def packed(masks: Tensor) -> list[dict[str, Any]]:
    """Return masks uint8 (D,H,W) in COCO's compressed run-length encoding."""
    columns: NDArray[np.uint8] = np.asfortranarray(masks.permute(1, 2, 0).numpy())
    runs: list[dict[str, Any]] = library().mask.encode(columns)
    return runs


def coco(found: Sequence[Found], objects: Detection, kind: str = "bbox") -> dict[str, float]:
    """Return COCO's AP, AP50 and AP75, and the AP of small, medium and large objects, in percent.

    `kind` is "bbox" or "segm". AP is the mean over the overlaps 0.5 to 0.95. A size without an
    object is left out. Crowds are neither required nor penalised. The size of an object is the area
    of its mask.
    """
    tools = library()
    if all(thing.spared for things in objects.things for thing in things):
        raise ValueError(NO_OBJECTS)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        truth = tools.coco.COCO()
        truth.dataset = _truth(found, objects)
        truth.createIndex()
        detections = [
            entry
            for image, number in zip(found, objects.ids, strict=True)
            for entry in _results(image, number, objects.categories, kind)
        ]
        if not detections:
            return dict.fromkeys(STATISTICS[:3], 0.0)  # pycocotools fails on an empty list
        evaluator = tools.cocoeval.COCOeval(truth, truth.loadRes(detections), kind)
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return {
        name: 100 * float(value)
        for name, value in zip(STATISTICS, evaluator.stats, strict=False)
        if value >= 0  # pycocotools reports -1 for a size without an object
    }


def _truth(found: Sequence[Found], objects: Detection) -> dict[str, Any]:
    """Return the objects in the format of COCO's annotation files.

    The sizes of the images are those of the images that were read.
    """
    annotations: list[dict[str, Any]] = []
    for number, things in zip(objects.ids, objects.things, strict=True):
        for thing in things:
            x0, y0, x1, y1 = thing.box
            annotation = {
                "id": len(annotations) + 1,  # pycocotools takes a match with id 0 for no match
                "image_id": number,
                "category_id": objects.categories[thing.label],
                "bbox": [x0, y0, x1 - x0, y1 - y0],
                "area": _area(thing),
                "iscrowd": int(thing.spared),
            }
            if thing.outline is not None:
                annotation["segmentation"] = thing.outline
            annotations.append(annotation)
    images = [
        {"id": number, "height": image.size[0], "width": image.size[1]}
        for number, image in zip(objects.ids, found, strict=True)
    ]
    return {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": number} for number in objects.categories],
    }


def _area(thing: Thing) -> float:
    """Return the area of an object in pixels.

    For polygons it is computed from the corners, which gives COCO's own area for objects other than
    crowds.
    """
    if thing.outline is None:
        return (thing.box[2] - thing.box[0]) * (thing.box[3] - thing.box[1])
    if isinstance(thing.outline, dict):
        return float(sum(thing.outline["counts"][1::2]))
    corners = [np.array(polygon, dtype=float).reshape(-1, 2).T for polygon in thing.outline]
    return float(sum(abs(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))) / 2 for x, y in corners))


def _results(
    found: Found, number: int, categories: Sequence[int], kind: str
) -> list[dict[str, Any]]:
    """Return the boxes or the masks of an image in the format of COCO's result files.

    An entry never has both, because pycocotools would then take the area of a mask from its box.
    """
    if kind == "bbox":
        sizes = found.boxes[:, 2:] - found.boxes[:, :2]
        name = "bbox"
        values: list[Any] = torch.cat([found.boxes[:, :2], sizes], 1).tolist()
    else:
        name = "segmentation"
        values = found.masks or []
    columns = zip(found.labels.tolist(), found.scores.tolist(), values, strict=True)
    return [
        {"image_id": number, "category_id": categories[label], "score": score, name: value}
        for label, score, value in columns
    ]
