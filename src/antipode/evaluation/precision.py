"""Average precision of detected boxes and masks, as VOC and as COCO count it. M objects, D detections, H W pixels.

VOC's is ours, COCO's is pycocotools'. They differ: VOC offers a detection only the object it covers best, wants an
overlap above the threshold and takes the precision at eleven recalls; COCO offers what other detections left, wants
the threshold itself and takes a hundred and one recalls.
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

OVERLAPS = [percent / 100 for percent in range(50, 100, 5)]
STATISTICS = ("AP", "AP50", "AP75", "APs", "APm", "APl")  # the first six of COCO's twelve


class Found(NamedTuple):
    """What a detector finds in one image of H W pixels; labels count from 0."""

    boxes: Tensor  # (D,4) x0 y0 x1 y1
    labels: Tensor  # (D,)
    scores: Tensor  # (D,)
    size: tuple[int, int]  # H W
    masks: list[dict[str, Any]] | None = None  # D in COCO's compressed run lengths


def average_precision(
    scores: Tensor, right: Tensor, objects: int, *, points: int | None = 11
) -> float:
    """Area under precision over recall, in [0,1], of detections with scores (D,) that are right or wrong (D,).

    At so many evenly spaced recalls (VOC 2007: 11), or under the whole curve (None; VOC 2010 and later). The precision
    at a recall is the best one at that recall or beyond.
    """
    if objects < 1 or (points is not None and points < 2):
        raise ValueError(
            f"average precision needs an object and two points at least, got {objects} and {points}"
        )
    if len(scores) != len(right):
        raise ValueError(f"{len(scores)} scores do not fit {len(right)} judgements")
    hits = right[torch.argsort(scores, descending=True, stable=True)].long().cumsum(0)
    precision = hits.double() / torch.arange(1, len(hits) + 1)
    best = precision.flip(0).cummax(0).values.flip(0) if len(hits) else precision
    if points is None:
        gained = hits.diff(prepend=hits.new_zeros(1))
        return float((gained * best).sum() / objects)
    # whole numbers: 3 of 10 objects reach the recall .3, which 0.1 + 0.2 in floating point does not
    reached = [
        ((points - 1) * hits >= point * objects).nonzero().flatten() for point in range(points)
    ]
    return float(sum(best[at[0]] for at in reached if len(at)) / points)


def judged(boxes: Tensor, scores: Tensor, truth: Tensor, spared: Tensor) -> tuple[Tensor, Tensor]:
    """Which detections are right and which count at all, (10,D) each for the OVERLAPS, in one image and class.

    VOC's rules: each is offered the one object of truth (M,4) that it overlaps most. The best scored of those above
    the overlap is right, the rest are wrong; on a spared (difficult) object none counts.
    """
    if not len(truth) or not len(boxes):
        none = torch.zeros(len(OVERLAPS), len(boxes), dtype=torch.bool)
        return none, ~none
    order = torch.argsort(scores, descending=True, stable=True)
    most, which = box_iou(boxes[order], truth).max(1)
    over = most > torch.tensor(OVERLAPS)[:, None]
    counts = ~(over & spared[which])
    offered = (which == torch.arange(len(truth))[:, None]) & (over & counts)[:, None]  # (10,M,D)
    first = (offered & (offered.cumsum(2) == 1)).any(1)
    back = torch.argsort(order)
    return first[:, back], counts[:, back]


def voc(
    found: Sequence[Found], things: Sequence[Sequence[Thing]], classes: Sequence[str]
) -> dict[str, Any]:
    """AP, AP50 and AP75 in percent with VOC 2007's eleven points: what Detectron2 prints for it, and so MoCo's tables.

    AP is the mean over overlaps .5 to .95; a class that no image has is left out. Detectron2 rounds scores to three
    digits and boxes to a tenth of a pixel before, which is not done here.
    """
    table = {}
    for label, name in enumerate(classes):
        rows = [_one(one, row, label) for one, row in zip(found, things, strict=True)]
        objects = sum(int((~spared).sum()) for *_, spared in rows)
        if objects:
            table[name] = _precisions(rows, objects)
    if not table:
        raise ValueError("there is no object to find in the test images")
    mean = 100 * np.mean(list(table.values()), axis=0)
    each = {name: 100 * values[0] for name, values in table.items()}
    return {
        "AP": float(mean.mean()),
        "AP50": float(mean[0]),
        "AP75": float(mean[5]),
        "AP50 of classes": each,
    }


Row = tuple[Tensor, Tensor, Tensor, Tensor]  # boxes (D,4), scores (D,), truth (M,4), spared (M,)


def _one(found: Found, things: Sequence[Thing], label: int) -> Row:
    mine, here = [thing for thing in things if thing.label == label], found.labels == label
    truth = torch.tensor([thing.box for thing in mine], dtype=torch.float32).reshape(-1, 4)
    spared = torch.tensor([thing.spared for thing in mine], dtype=torch.bool)
    return found.boxes[here], found.scores[here], truth, spared


def _precisions(rows: list[Row], objects: int) -> list[float]:
    """The average precision of one class at each of the OVERLAPS."""
    scores, parts = torch.cat([scores for _, scores, _, _ in rows]), [judged(*row) for row in rows]
    right, counts = (torch.cat(column, 1) for column in zip(*parts, strict=True))
    each = zip(right, counts, strict=True)
    return [average_precision(scores[counts], right[counts], objects) for right, counts in each]


def library() -> Any:
    """pycocotools, or a sentence where it is not installed."""
    try:
        return [
            import_module(f"pycocotools{part}") for part in (".coco", ".cocoeval", ".mask", "")
        ][-1]
    except ImportError:
        raise ValueError(
            "COCO's metrics need the extra: pip install 'antipode[detection]'"
        ) from None


def drawn(outlines: Sequence[Any], height: int, width: int) -> Tensor:
    """Masks uint8 (M,H,W) of outlines as COCO writes them, pixel by pixel those that its metric compares with.

    Pillow fills the pixels under an outline as well: its masks are a ninth larger on COCO, small ones a fifth.
    """
    tools, masks = library().mask, torch.zeros(len(outlines), height, width, dtype=torch.uint8)
    for mask, outline in zip(masks, outlines, strict=True):
        lines = (
            outline
            if isinstance(outline, dict)
            else [polygon for polygon in outline if len(polygon) >= 6]
        )
        if lines:
            runs = tools.frPyObjects(lines, height, width)
            mask.copy_(
                torch.from_numpy(
                    tools.decode(tools.merge(runs) if isinstance(runs, list) else runs)
                )
            )
    return masks


def packed(masks: Tensor) -> list[dict[str, Any]]:
    """Masks uint8 (D,H,W) as COCO's compressed run lengths."""
    columns: NDArray[np.uint8] = np.asfortranarray(masks.permute(1, 2, 0).numpy())
    runs: list[dict[str, Any]] = library().mask.encode(columns)
    return runs


def coco(found: Sequence[Found], objects: Detection, kind: str = "bbox") -> dict[str, float]:
    """COCO's AP over overlaps .5 to .95, AP50, AP75 and those of small, medium and large objects, in percent.

    `kind` is bbox or segm. A size that no object has is left out. Crowds are spared, sizes are those of the masks.
    """
    tools = library()
    if all(thing.spared for things in objects.things for thing in things):
        raise ValueError("there is no object to find in the test images")
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints as it goes
        truth = tools.coco.COCO()
        truth.dataset = _truth(found, objects)
        truth.createIndex()
        each = zip(found, objects.ids, strict=True)
        answers = [
            answer
            for one, number in each
            for answer in _answers(one, number, objects.categories, kind)
        ]
        if not answers:
            return dict.fromkeys(STATISTICS[:3], 0.0)  # pycocotools has no answer to none
        judge = tools.cocoeval.COCOeval(truth, truth.loadRes(answers), kind)
        for step in (judge.evaluate, judge.accumulate, judge.summarize):
            step()
    return {
        name: 100 * float(value)
        for name, value in zip(STATISTICS, judge.stats, strict=False)
        if value >= 0
    }


def _truth(found: Sequence[Found], objects: Detection) -> dict[str, Any]:
    """The objects as COCO's own file has them, sizes of the images from those that were read."""
    notes: list[dict[str, Any]] = []
    for number, things in zip(objects.ids, objects.things, strict=True):
        for thing in things:
            x0, y0, x1, y1 = thing.box
            note = {
                "id": len(notes) + 1,  # pycocotools takes a match with number 0 for none
                "image_id": number,
                "category_id": objects.categories[thing.label],
                "bbox": [x0, y0, x1 - x0, y1 - y0],
                "area": _area(thing),
                "iscrowd": int(thing.spared),
            }
            notes.append(note if thing.outline is None else note | {"segmentation": thing.outline})
    sizes = zip(objects.ids, found, strict=True)
    images = [{"id": number, "height": one.size[0], "width": one.size[1]} for number, one in sizes]
    return {
        "images": images,
        "annotations": notes,
        "categories": [{"id": number} for number in objects.categories],
    }


def _area(thing: Thing) -> float:
    """Pixels of an object, by the outline's corners: COCO's own figure for what is no crowd."""
    if thing.outline is None:
        return (thing.box[2] - thing.box[0]) * (thing.box[3] - thing.box[1])
    if isinstance(thing.outline, dict):
        return float(sum(thing.outline["counts"][1::2]))
    corners = [np.array(polygon, dtype=float).reshape(-1, 2).T for polygon in thing.outline]
    return float(sum(abs(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))) / 2 for x, y in corners))


def _answers(
    found: Found, number: int, categories: Sequence[int], kind: str
) -> list[dict[str, Any]]:
    """The boxes or the masks of an image as COCO's result files have them.

    Not both: pycocotools would take the size of a mask from its box.
    """
    corners = torch.cat([found.boxes[:, :2], found.boxes[:, 2:] - found.boxes[:, :2]], 1).tolist()
    name, what = ("bbox", corners) if kind == "bbox" else ("segmentation", found.masks or [])
    columns = zip(found.labels.tolist(), found.scores.tolist(), what, strict=True)
    about = {"image_id": number}
    return [
        about | {"category_id": categories[label], "score": score, name: one}
        for label, score, one in columns
    ]
