"""Average precision by its definition, VOC's judgement by its rules, COCO's figures by COCO's own tool."""

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

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__:DeprecationWarning"
)  # pycocotools with NumPy 2
RANDOM = np.random.default_rng(0)


def naive_precision(scores, right, objects, points):
    """From the definition: at each recall, the best precision of any cut that reaches it."""
    order = sorted(range(len(scores)), key=lambda at: -scores[at])
    cuts = [(sum(right[at] for at in order[:many]), many) for many in range(1, len(order) + 1)]

    def best(hits):  # of cuts with so many hits at least
        return max((good / many for good, many in cuts if good >= hits), default=0)

    if points is None:
        return sum(best(hits) for hits in range(1, objects + 1)) / objects
    return sum(best(objects * point / (points - 1)) for point in range(points)) / points


@pytest.mark.parametrize("points", [11, 101, None])
def test_average_precision_is_its_definition(points):
    for _ in range(40):
        many, objects = int(RANDOM.integers(0, 30)), int(RANDOM.integers(1, 20))
        right = RANDOM.permutation(np.arange(many) < objects)
        right &= RANDOM.random(many) < 0.7
        scores = RANDOM.permutation(many) / 30
        found = average_precision(
            torch.tensor(scores), torch.tensor(right, dtype=torch.bool), objects, points=points
        )
        assert found == pytest.approx(
            naive_precision(scores.tolist(), right.tolist(), objects, points), abs=1e-12
        )


def test_a_recall_that_is_reached_exactly_counts():
    """3 of 10 objects reach the recalls 0, .1, .2 and .3: four of eleven points."""
    assert average_precision(
        torch.tensor([0.9, 0.8, 0.7]), torch.ones(3, dtype=torch.bool), 10
    ) == pytest.approx(4 / 11)


def naive_judgement(boxes, scores, truth, spared, overlap):
    """VOC's rules, one detection after the other: hit, miss or neither."""
    taken, verdict = set(), {}
    for at in sorted(range(len(boxes)), key=lambda at: -scores[at]):
        covers = [area(boxes[at], other) for other in truth]
        best = max(range(len(truth)), key=lambda other: covers[other], default=None)
        if best is None or covers[best] <= overlap:
            verdict[at] = "miss"
        elif spared[best]:
            verdict[at] = "neither"
        else:
            verdict[at] = "miss" if best in taken else "hit"
            taken.add(best)
    return [verdict[at] for at in range(len(boxes))]


def area(a, b):
    """Intersection over union."""
    wide, tall = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(wide, 0) * max(tall, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def some_boxes(many, near=None):
    corner = (
        RANDOM.uniform(0, 30, (many, 2))
        if near is None
        else near[RANDOM.integers(0, len(near), many), :2]
    )
    jitter = 0 if near is None else RANDOM.normal(0, 2, (many, 4))
    return np.c_[corner, corner + 20] + jitter


def test_detections_are_judged_by_vocs_rules():
    seen = set()
    for _ in range(30):
        truth = some_boxes(int(RANDOM.integers(0, 4)))
        boxes = some_boxes(int(RANDOM.integers(0, 9)), truth if len(truth) else None)
        spared, scores = RANDOM.random(len(truth)) < 0.3, RANDOM.permutation(len(boxes)) / 10
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
            names = zip(right[row].tolist(), counts[row].tolist(), strict=True)
            assert [
                "hit" if hit else "miss" if count else "neither" for hit, count in names
            ] == expected
            seen.update(expected)
    assert seen == {"hit", "miss", "neither"}


def exact(objects, keep=lambda thing: True):
    """A detector that finds each thing as it is."""
    found = []
    for index in range(len(objects)):
        image, target = objects[index]
        kept = [at for at, thing in enumerate(objects.things[index]) if keep(thing)]
        outlines = [
            thing.outline
            for thing in objects.things[index]
            if keep(thing) and thing.outline is not None
        ]
        masks = packed(drawn(outlines, *image.shape[1:])) if outlines else []
        scores = torch.linspace(0.9, 0.5, len(kept))
        found.append(
            Found(
                target["boxes"][kept],
                target["labels"][kept] - 1,
                scores,
                tuple(image.shape[1:]),
                masks,
            )
        )
    return found


@pytest.fixture(scope="module")
def vocs(tmp_path_factory):
    return detection(
        "voc07+12", "test", scenes.voc(tmp_path_factory.mktemp("voc"), train=2, test=8)
    )


def test_finding_everything_in_voc_is_a_hundred_percent(vocs):
    found = voc(exact(vocs), vocs.things, vocs.classes)
    assert found["AP"] == found["AP50"] == found["AP75"] == 100
    assert set(found["AP50 of classes"]) == set(
        scenes.KINDS
    )  # classes that are nowhere are no failure


def test_difficult_objects_neither_help_nor_hurt(vocs):
    assert any(thing.spared for things in vocs.things for thing in things)
    without = voc(exact(vocs, lambda thing: not thing.spared), vocs.things, vocs.classes)
    assert without == voc(exact(vocs), vocs.things, vocs.classes)


def test_a_class_that_is_missed_costs_its_share(vocs):
    found = voc(exact(vocs, lambda thing: thing.label != 1), vocs.things, vocs.classes)
    assert found["AP"] == pytest.approx(200 / 3) and found["AP50 of classes"]["bicycle"] == 0


def blurred(objects, random):
    """A mediocre detector: shifted boxes and masks, some missing, some doubled, some of the wrong class."""
    found = []
    for index in range(len(objects)):
        image, target = objects[index]
        many = len(target["boxes"])
        rows = [at for at in [*range(many), *range(many)] if random.random() < 0.7]
        boxes = target["boxes"][rows] + torch.tensor(
            random.normal(0, 2.5, (len(rows), 4)), dtype=torch.float32
        )
        labels = (target["labels"][rows] - 1 + torch.tensor(random.random(len(rows)) < 0.1)) % len(
            objects.classes
        )
        shifts = [int(shift) for shift in random.integers(-4, 5, len(rows))]
        masks = [target["masks"][at].roll(shift, 1) for at, shift in zip(rows, shifts, strict=True)]
        scores = torch.tensor(random.random(len(rows)))
        found.append(
            Found(
                boxes,
                labels,
                scores,
                tuple(image.shape[1:]),
                packed(torch.stack(masks)) if masks else [],
            )
        )
    return found


@pytest.fixture(scope="module")
def cocos(tmp_path_factory):
    root = scenes.coco(tmp_path_factory.mktemp("coco"), train=1, test=12)
    return detection("coco", "test", root), root / "instances_val.json"


def by_the_book(found, objects, file, kind, folder):
    """pycocotools on files alone, as COCO's own demo does; the truth's file has mask areas like COCO's."""
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
    for one, number in zip(found, objects.ids, strict=True):
        for at in range(len(one.boxes)):
            x0, y0, x1, y1 = one.boxes[at].tolist()
            about = {
                "image_id": number,
                "category_id": objects.categories[one.labels[at]],
                "score": float(one.scores[at]),
            }
            runs = {"size": one.masks[at]["size"], "counts": one.masks[at]["counts"].decode()}
            results.append(
                about
                | (
                    {"bbox": [x0, y0, x1 - x0, y1 - y0]}
                    if kind == "bbox"
                    else {"segmentation": runs}
                )
            )
    (folder / "results.json").write_text(json.dumps(results))
    truth = COCO(str(folder / "truth.json"))
    judge = COCOeval(truth, truth.loadRes(str(folder / "results.json")), kind)
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    return judge.stats


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_cocos_figures_are_those_of_its_own_tool_on_files(cocos, kind, tmp_path):
    objects, file = cocos
    found = blurred(objects, np.random.default_rng(1))
    expected = by_the_book(found, objects, file, kind, tmp_path)
    ours = coco(found, objects, kind)
    assert [100 * value for value in expected[:6] if value >= 0] == pytest.approx(
        list(ours.values())
    )
    assert 5 < ours["AP"] < 95 and ours["AP50"] > ours["AP"] and {"APs", "APm"} <= ours.keys()


def test_masks_are_drawn_pixel_for_pixel_and_packed_without_loss():
    square, runs = (
        [[2.0, 1.0, 6.0, 1.0, 6.0, 4.0, 2.0, 4.0]],
        {"size": [5, 8], "counts": [5, 3, 32]},
    )
    masks = drawn([square, runs], 5, 8)
    expected = torch.zeros(2, 5, 8, dtype=torch.uint8)
    expected[0, 1:4, 2:6] = 1
    expected[1, :3, 1] = 1  # runs go down the columns
    assert torch.equal(masks, expected)
    assert torch.equal(
        drawn([[*square, [0.0, 0.0, 3.0, 3.0]]], 5, 8)[0], masks[0]
    )  # two corners enclose nothing
    assert not drawn([[[0.0, 0.0, 3.0, 3.0]]], 5, 8).any()
    from pycocotools.mask import decode

    assert np.array_equal(decode(packed(masks)), masks.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_finding_everything_in_coco_is_a_hundred_percent_whatever_the_crowds(cocos, kind):
    objects, _ = cocos
    for found in (exact(objects), exact(objects, lambda thing: not thing.spared)):
        assert coco(found, objects, kind)["AP"] == pytest.approx(100)


def test_where_the_rules_agree_so_do_the_two_metrics(cocos):
    """Things apart and each found once at most: then VOC's judgement with COCO's 101 points is COCO's AP50."""
    objects, _ = cocos
    random, found = np.random.default_rng(2), []
    for index in range(len(objects)):
        image, target = objects[index]
        rows = [
            at
            for at, thing in enumerate(objects.things[index])
            if not thing.spared and random.random() < 0.8
        ]
        boxes = target["boxes"][rows] + torch.tensor(
            random.normal(0, 3.0, (len(rows), 4)), dtype=torch.float32
        )
        scores = torch.tensor(random.random(len(rows)))
        found.append(Found(boxes, target["labels"][rows] - 1, scores, tuple(image.shape[1:])))
    values = []
    for label in range(3):
        scores, right, many = [], [], 0
        for one, things in zip(found, objects.things, strict=True):
            truth = torch.tensor(
                [thing.box for thing in things if thing.label == label and not thing.spared]
            )
            here = one.labels == label
            hit, _ = judged(
                one.boxes[here],
                one.scores[here],
                truth.reshape(-1, 4),
                torch.zeros(len(truth), dtype=bool),
            )
            many += len(truth)
            right.append(hit[0])
            scores.append(one.scores[here])
        values.append(average_precision(torch.cat(scores), torch.cat(right), many, points=101))
    ours = coco(found, objects)["AP50"]
    assert ours == pytest.approx(100 * np.mean(values)) and 20 < ours < 99


def test_nothing_found_is_nothing_and_prints_nothing(cocos, vocs, capsys):
    def empty(objects):
        return [
            Found(torch.zeros(0, 4), torch.zeros(0, dtype=int), torch.zeros(0), (96, 96), [])
            for _ in objects.ids
        ]

    assert (
        coco(empty(cocos[0]), cocos[0])
        == coco(empty(cocos[0]), cocos[0], "segm")
        == {"AP": 0, "AP50": 0, "AP75": 0}
    )
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
        with pytest.raises(ValueError, match="no object to find in the test images"):
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
            "an object and two points at least, got 0 and 11",
        ),
        ((torch.ones(2), torch.ones(3, dtype=torch.bool), 1), "2 scores do not fit 3 judgements"),
    ],
)
def test_a_precision_of_what_does_not_fit_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        average_precision(*arguments)
