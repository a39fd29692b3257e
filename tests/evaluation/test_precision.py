"""Tests of average precision: its definition, VOC's rules, and COCO's own tool."""

import json
import sys

import numpy as np
import pytest
import torch

from antipode.data.sources.annotated import Detection, Thing, detection
from antipode.evaluation.precision import (
    OVERLAPS,
    Found,
    average_precision,
    coco,
    drawn,
    judged,
    packed,
    voc,
)
from tests.evaluation import scenes

# pycocotools with NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")
RANDOM = np.random.default_rng(0)


def naive_precision(scores, right, objects, points):
    """Compute the definition: at each recall, the best precision of any cut that reaches it."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    cuts = [
        (sum(right[index] for index in order[:count]), count) for count in range(1, len(order) + 1)
    ]

    def best(needed):
        """Return the best precision of a cut with at least `needed` hits."""
        return max((hits / count for hits, count in cuts if hits >= needed), default=0)

    if points is None:
        return sum(best(hits) for hits in range(1, objects + 1)) / objects
    return sum(best(objects * point / (points - 1)) for point in range(points)) / points


@pytest.mark.parametrize("points", [11, 101, None])
def test_average_precision_is_its_definition(points):
    for _ in range(40):
        count = int(RANDOM.integers(0, 30))
        objects = int(RANDOM.integers(1, 20))
        right = RANDOM.permutation(np.arange(count) < objects)
        right &= RANDOM.random(count) < 0.7
        scores = RANDOM.permutation(count) / 30
        precision = average_precision(
            torch.tensor(scores), torch.tensor(right, dtype=torch.bool), objects, points=points
        )
        expected = naive_precision(scores.tolist(), right.tolist(), objects, points)
        assert precision == pytest.approx(expected, abs=1e-12)


def test_a_recall_that_is_reached_exactly_counts():
    """3 of 10 objects reach the recalls 0, 0.1, 0.2 and 0.3: four of eleven points."""
    right = torch.ones(3, dtype=torch.bool)
    precision = average_precision(torch.tensor([0.9, 0.8, 0.7]), right, 10)
    assert precision == pytest.approx(4 / 11)


def naive_judgement(boxes, scores, truth, spared, overlap):
    """Apply VOC's rules to one detection after the other: each is a hit, a miss or neither."""
    matched = set()
    verdict = {}
    for index in sorted(range(len(boxes)), key=lambda index: -scores[index]):
        overlaps = [iou(boxes[index], other) for other in truth]
        best = max(range(len(truth)), key=lambda other: overlaps[other], default=None)
        if best is None or overlaps[best] <= overlap:
            verdict[index] = "miss"
        elif spared[best]:
            verdict[index] = "neither"
        else:
            verdict[index] = "miss" if best in matched else "hit"
            matched.add(best)
    return [verdict[index] for index in range(len(boxes))]


def iou(a, b):
    """Return the intersection over union of two boxes."""
    wide = min(a[2], b[2]) - max(a[0], b[0])
    tall = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(wide, 0) * max(tall, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def random_boxes(count, near=None):
    """Return random boxes of about 20 x 20 pixels, close to those of `near` if given."""
    if near is None:
        corner = RANDOM.uniform(0, 30, (count, 2))
        return np.c_[corner, corner + 20]
    corner = near[RANDOM.integers(0, len(near), count), :2]
    return np.c_[corner, corner + 20] + RANDOM.normal(0, 2, (count, 4))


def test_detections_are_judged_by_vocs_rules():
    verdicts = set()
    for _ in range(30):
        truth = random_boxes(int(RANDOM.integers(0, 4)))
        boxes = random_boxes(int(RANDOM.integers(0, 9)), truth if len(truth) else None)
        spared = RANDOM.random(len(truth)) < 0.3
        scores = RANDOM.permutation(len(boxes)) / 10
        right, counts = judged(
            torch.tensor(boxes).reshape(-1, 4),
            torch.tensor(scores),
            torch.tensor(truth).reshape(-1, 4),
            torch.tensor(spared),
        )
        for row, overlap in enumerate(OVERLAPS):
            expected = naive_judgement(
                boxes.tolist(), scores.tolist(), truth.tolist(), spared.tolist(), overlap
            )
            pairs = zip(right[row].tolist(), counts[row].tolist(), strict=True)
            names = ["hit" if hit else "miss" if count else "neither" for hit, count in pairs]
            assert names == expected
            verdicts.update(expected)
    assert verdicts == {"hit", "miss", "neither"}


def one_each(*overlaps):
    """Return one object per image, and a detection of each with the given overlap.

    The detection is a part of its object. The scores fall from image to image.
    """
    things = [[Thing(0, (0.0, 0.0, 100.0, 100.0))] for _ in overlaps]
    found = [
        Found(
            torch.tensor([[0.0, 0.0, 100.0, 100 * overlap]]),
            torch.tensor([0]),
            torch.tensor([0.9 - 0.1 * place]),
            (100, 100),
        )
        for place, overlap in enumerate(overlaps)
    ]
    return found, things


@pytest.mark.parametrize(("overlap", "hits"), [(0.5, 0), (0.51, 1), (0.75, 5), (0.76, 6)])
def test_a_detection_that_overlaps_by_exactly_the_threshold_is_wrong_in_voc(overlap, hits):
    (found,), ((thing,),) = one_each(overlap)
    right, counts = judged(
        found.boxes, found.scores, torch.tensor([thing.box]), torch.tensor([False])
    )
    assert right[:, 0].tolist() == [True] * hits + [False] * (10 - hits) and counts.all()


def test_coco_accepts_the_overlap_that_voc_does_not():
    """0.5 and 0.75 are the same numbers in every precision."""
    found, things = one_each(0.75)
    objects = Detection(None, things, [1], ["a"], [1])
    ours = voc(found, things, ["a"])
    theirs = coco(found, objects)
    assert (ours["AP50"], ours["AP75"], ours["AP"]) == pytest.approx((100, 0, 50))
    assert (theirs["AP50"], theirs["AP75"], theirs["AP"]) == pytest.approx((100, 100, 60))
    found, things = one_each(0.5)
    objects = Detection(None, things, [1], ["a"], [1])
    assert voc(found, things, ["a"])["AP50"] == 0
    assert coco(found, objects)["AP50"] == pytest.approx(100)


def test_ap50_and_ap75_are_those_of_their_overlaps_and_ap_is_the_mean_of_all_ten():
    """Of four objects, 4 4 4 3 3 2 1 1 1 0 are found at the overlaps 0.5 to 0.95.

    No detection with a higher score is wrong, so the precision is 1 at every recall that is
    reached: at 11, 8, 6, 3 or 0 of the 11 points.
    """
    metrics = voc(*one_each(0.92, 0.77, 0.72, 0.62), ["a"])
    points = [11, 11, 11, 8, 8, 6, 3, 3, 3, 0]
    assert metrics["AP50"] == pytest.approx(100)
    assert metrics["AP75"] == pytest.approx(100 * 6 / 11)
    assert metrics["AP"] == pytest.approx(100 * sum(points) / 110)
    assert metrics["AP50 of classes"] == pytest.approx({"a": 100})


def exact(objects, keep=lambda thing: True):
    """Return the detections of a perfect detector for the objects that `keep` selects."""
    detections = []
    for index in range(len(objects)):
        image, target = objects[index]
        things = objects.things[index]
        rows = [row for row, thing in enumerate(things) if keep(thing)]
        outlines = [things[row].outline for row in rows if things[row].outline is not None]
        masks = packed(drawn(outlines, *image.shape[1:])) if outlines else []
        boxes = target["boxes"][rows]
        labels = target["labels"][rows] - 1
        scores = torch.linspace(0.9, 0.5, len(rows))
        detections.append(Found(boxes, labels, scores, tuple(image.shape[1:]), masks))
    return detections


@pytest.fixture(scope="module")
def vocs(tmp_path_factory):
    """Return the test images of a small data set in VOC's layout."""
    root = scenes.voc(tmp_path_factory.mktemp("voc"), train=2, test=8)
    return detection("voc07+12", "test", root)


def test_finding_everything_in_voc_is_a_hundred_percent(vocs):
    metrics = voc(exact(vocs), vocs.things, vocs.classes)
    assert metrics["AP"] == metrics["AP50"] == metrics["AP75"] == 100
    # classes without an object are left out
    assert set(metrics["AP50 of classes"]) == set(scenes.KINDS)


def test_difficult_objects_neither_help_nor_hurt(vocs):
    assert any(thing.spared for things in vocs.things for thing in things)
    without = voc(exact(vocs, lambda thing: not thing.spared), vocs.things, vocs.classes)
    assert without == voc(exact(vocs), vocs.things, vocs.classes)


def test_a_class_that_is_missed_costs_its_share(vocs):
    metrics = voc(exact(vocs, lambda thing: thing.label != 1), vocs.things, vocs.classes)
    assert metrics["AP"] == pytest.approx(200 / 3) and metrics["AP50 of classes"]["bicycle"] == 0


def blurred(objects, random):
    """Return the detections of a mediocre detector.

    Its boxes and masks are shifted. Some objects are missing, some are found twice, and some
    detections have the wrong class.
    """
    detections = []
    for index in range(len(objects)):
        image, target = objects[index]
        count = len(target["boxes"])
        rows = [row for row in [*range(count), *range(count)] if random.random() < 0.7]
        noise = torch.tensor(random.normal(0, 2.5, (len(rows), 4)), dtype=torch.float32)
        boxes = target["boxes"][rows] + noise
        wrong = torch.tensor(random.random(len(rows)) < 0.1)
        labels = (target["labels"][rows] - 1 + wrong) % len(objects.classes)
        shifts = [int(shift) for shift in random.integers(-4, 5, len(rows))]
        masks = [
            target["masks"][row].roll(shift, 1) for row, shift in zip(rows, shifts, strict=True)
        ]
        scores = torch.tensor(random.random(len(rows)))
        runs = packed(torch.stack(masks)) if masks else []
        detections.append(Found(boxes, labels, scores, tuple(image.shape[1:]), runs))
    return detections


@pytest.fixture(scope="module")
def cocos(tmp_path_factory):
    """Return the test images of a small data set in COCO's layout, and its annotation file."""
    root = scenes.coco(tmp_path_factory.mktemp("coco"), train=1, test=12)
    return detection("coco", "test", root), root / "instances_val.json"


def by_the_book(found, objects, file, kind, folder):
    """Return the statistics of pycocotools on files, used as in COCO's own demo.

    The annotation file gets the areas of the masks, as in COCO's own files.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    notes = json.loads(file.read_text())
    for note in notes["annotations"]:
        note["id"] += 1
        if not note["iscrowd"]:
            x, y = np.array(note["segmentation"][0]).reshape(-1, 2).T
            note["area"] = abs(sum(x[i - 1] * y[i] - x[i] * y[i - 1] for i in range(len(x)))) / 2
        else:
            note["area"] = 20
    (folder / "truth.json").write_text(json.dumps(notes))
    results = []
    for image, number in zip(found, objects.ids, strict=True):
        for row in range(len(image.boxes)):
            result = {
                "image_id": number,
                "category_id": objects.categories[image.labels[row]],
                "score": float(image.scores[row]),
            }
            if kind == "bbox":
                x0, y0, x1, y1 = image.boxes[row].tolist()
                result["bbox"] = [x0, y0, x1 - x0, y1 - y0]
            else:
                runs = image.masks[row]
                result["segmentation"] = {"size": runs["size"], "counts": runs["counts"].decode()}
            results.append(result)
    (folder / "results.json").write_text(json.dumps(results))
    truth = COCO(str(folder / "truth.json"))
    evaluator = COCOeval(truth, truth.loadRes(str(folder / "results.json")), kind)
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return evaluator.stats


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_cocos_figures_are_those_of_its_own_tool_on_files(cocos, kind, tmp_path):
    objects, file = cocos
    found = blurred(objects, np.random.default_rng(1))
    expected = by_the_book(found, objects, file, kind, tmp_path)
    ours = coco(found, objects, kind)
    percents = [100 * value for value in expected[:6] if value >= 0]
    assert percents == pytest.approx(list(ours.values()))
    assert 5 < ours["AP"] < 95 and ours["AP50"] > ours["AP"] and {"APs", "APm"} <= ours.keys()


def test_masks_are_drawn_pixel_for_pixel_and_packed_without_loss():
    square = [[2.0, 1.0, 6.0, 1.0, 6.0, 4.0, 2.0, 4.0]]
    runs = {"size": [5, 8], "counts": [5, 3, 32]}
    masks = drawn([square, runs], 5, 8)
    expected = torch.zeros(2, 5, 8, dtype=torch.uint8)
    expected[0, 1:4, 2:6] = 1
    expected[1, :3, 1] = 1  # runs go down the columns
    assert torch.equal(masks, expected)
    line = [0.0, 0.0, 3.0, 3.0]  # two corners have no area
    assert torch.equal(drawn([[*square, line]], 5, 8)[0], masks[0])
    assert not drawn([[line]], 5, 8).any()
    from pycocotools.mask import decode

    assert np.array_equal(decode(packed(masks)), masks.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_finding_everything_in_coco_is_a_hundred_percent_whatever_the_crowds(cocos, kind):
    objects, _ = cocos
    for found in (exact(objects), exact(objects, lambda thing: not thing.spared)):
        assert coco(found, objects, kind)["AP"] == pytest.approx(100)


def test_where_the_rules_agree_so_do_the_two_metrics(cocos):
    """VOC's rules with 101 points give COCO's AP50 if no object overlaps or is found twice."""
    objects, _ = cocos
    random = np.random.default_rng(2)
    detections = []
    for index in range(len(objects)):
        image, target = objects[index]
        rows = [
            row
            for row, thing in enumerate(objects.things[index])
            if not thing.spared and random.random() < 0.8
        ]
        noise = torch.tensor(random.normal(0, 3.0, (len(rows), 4)), dtype=torch.float32)
        boxes = target["boxes"][rows] + noise
        scores = torch.tensor(random.random(len(rows)))
        detections.append(Found(boxes, target["labels"][rows] - 1, scores, tuple(image.shape[1:])))
    values = []
    for label in range(3):
        scores = []
        right = []
        count = 0
        for image, things in zip(detections, objects.things, strict=True):
            truth = torch.tensor(
                [thing.box for thing in things if thing.label == label and not thing.spared]
            )
            mine = image.labels == label
            hits, _ = judged(
                image.boxes[mine],
                image.scores[mine],
                truth.reshape(-1, 4),
                torch.zeros(len(truth), dtype=bool),
            )
            count += len(truth)
            right.append(hits[0])
            scores.append(image.scores[mine])
        values.append(average_precision(torch.cat(scores), torch.cat(right), count, points=101))
    ours = coco(detections, objects)["AP50"]
    assert ours == pytest.approx(100 * np.mean(values)) and 20 < ours < 99


def test_nothing_found_is_nothing_and_prints_nothing(cocos, vocs, capsys):
    def empty(objects):
        return [
            Found(torch.zeros(0, 4), torch.zeros(0, dtype=int), torch.zeros(0), (96, 96), [])
            for _ in objects.ids
        ]

    nothing = {"AP": 0, "AP50": 0, "AP75": 0}
    assert coco(empty(cocos[0]), cocos[0]) == nothing
    assert coco(empty(cocos[0]), cocos[0], "segm") == nothing
    assert voc(empty(vocs), vocs.things, vocs.classes)["AP"] == 0
    coco(exact(cocos[0]), cocos[0])
    assert capsys.readouterr().out == ""


def test_nothing_to_find_is_a_sentence():
    objects = Detection(None, [[Thing(0, (0, 0, 5, 5), None, True)]], [1], ["a"], [1])
    found = [Found(torch.zeros(0, 4), torch.zeros(0, dtype=int), torch.zeros(0), (9, 9))]
    for metric in (
        lambda: coco(found, objects),
        lambda: voc(found, objects.things, objects.classes),
    ):
        with pytest.raises(ValueError, match="the test images have no object to detect"):
            metric()


def test_without_pycocotools_there_is_a_sentence_with_the_command(cocos, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(ValueError, match=r"pip install 'antipode\[detection\]'"):
        coco([], cocos[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            (torch.ones(2), torch.ones(2, dtype=torch.bool), 0),
            "at least one object and two points, got 0 and 11",
        ),
        ((torch.ones(2), torch.ones(3, dtype=torch.bool), 1), "the same length, got 2 and 3"),
    ],
)
def test_a_precision_of_what_does_not_fit_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        average_precision(*arguments)
