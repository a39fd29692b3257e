"""Tests of fine-tuning a detector: schedule, batches, training, and inputs that stay unchanged."""

import copy
import math
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from antipode import dist
from antipode.data.sources.annotated import detection
from antipode.data.sources.catalog import load
from antipode.evaluation import detect
from antipode.evaluation.objects import batches, mirrored, usable
from antipode.evaluation.protocol import protocols
from antipode.nets.backbone import backbone
from tests.evaluation import scenes

# pycocotools with NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")
DATA = Path(os.environ.get("ANTIPODE_DATA", "/nonexistent"))
COCO = pytest.mark.skipif(
    not (DATA / "coco-mini").is_dir(), reason="coco-mini is not in ANTIPODE_DATA"
)
KINDS = {
    "c4": ("voc07+12", detect.VOC),
    "fpn": ("coco", detect.COCO),
    "mask-fpn": ("coco", detect.MASKS),
}


def quick(settings, **changes):
    """Return settings for training in seconds: small images, small heads, two images per step."""
    small = {
        "sides": (64,),
        "longest": 128,
        "anchors": (8, 16, 24, 32, 48),
        "width": 16,
        "rois": 16,
        "precise": 1,
    }
    short = {"iterations": 3, "falls": (), "warmup": 0, "batch": 2, "rule": "fixed", "lr": 0.02}
    return replace(settings, **{**small, **short, **changes})


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Return a folder of scenes for each data set, with four train and two test images."""
    writers = {"voc07+12": scenes.voc, "coco": scenes.coco}
    return {
        name: write(tmp_path_factory.mktemp(name), train=4, test=2)
        for name, write in writers.items()
    }


def task(roots, name, **options):
    return scenes.task(roots[name], name, **{"stem": "imagenet", **options})


def training(roots, kind):
    """Return a detector, the images to train it on, and its settings."""
    name, settings = KINDS[kind]
    objects = usable(
        detection(name, "train", roots[name]), spared=name != "coco", masks=kind == "mask-fpn"
    )
    torch.manual_seed(5)
    return detect.build(task(roots, name), len(objects.classes), quick(settings)), objects, settings


@pytest.mark.parametrize(
    "settings", [detect.VOC, detect.COCO, detect.COCO_AS_PRINTED, detect.MASKS]
)
def test_the_rate_warms_up_from_a_thousandth_and_falls_tenfold(settings):
    line = [settings.rate(step) / settings.lr for step in range(settings.warmup + 1)]
    assert line[0] == pytest.approx(1e-3) and line[-1] == 1
    assert line == pytest.approx(
        [1e-3 + (1 - 1e-3) * step / settings.warmup for step in range(len(line))]
    )
    first, second = settings.falls
    ends = [first - 1, first, second - 1, second, settings.iterations - 1]
    assert [settings.rate(step) / settings.lr for step in ends] == pytest.approx(
        [1, 0.1, 0.1, 0.01, 0.01]
    )


def test_the_schedules_are_those_of_the_papers_in_epochs():
    voc = 5_011 + 11_540  # train images with an object
    coco = 117_266
    assert round(detect.VOC.iterations * 16 / voc) == 23
    assert round(detect.COCO.iterations * 16 / coco) == 12
    assert detect.VOC.sides[0] == 480 and detect.COCO.sides[0] == 640
    printed = detect.COCO_AS_PRINTED  # EqCo, appendix B.5: .2, lowered at epochs 7 and 11 of 12
    assert printed.lr == 0.2
    assert [12 * fall / printed.iterations for fall in printed.falls] == [7, 11]
    for settings in (detect.VOC, detect.COCO, detect.MASKS):
        assert settings.sides[-1] == 800 and {b - a for a, b in pairwise(settings.sides)} == {32}


@pytest.mark.parametrize("batch", [2, 4, 32])
def test_the_linear_rule_sees_as_many_images_at_as_much_rate_an_image(batch):
    scaled = replace(detect.VOC, batch=batch).fitted()
    assert scaled.iterations * batch == detect.VOC.iterations * 16
    assert scaled.lr / batch == pytest.approx(detect.VOC.lr / 16)
    for step in (0, 800, 8_000, 18_400, 23_200):
        share = scaled.rate(step * 16 // batch) / scaled.lr
        assert share == pytest.approx(detect.VOC.rate(step) / detect.VOC.lr)
    assert scaled.fitted() == scaled  # a second call changes nothing


def test_the_fixed_rule_changes_nothing():
    settings = replace(detect.VOC, batch=4, rule="fixed")
    assert settings.fitted() == settings


def test_difficult_objects_are_learnt_and_crowds_are_not(roots):
    root = scenes.voc(roots["voc07+12"].parent / "more", train=10, test=1)
    voc = detection("voc07+12", "train", root)
    assert sum(thing.spared for things in voc.things for thing in things) == 2
    assert usable(voc, spared=True, masks=False).things == voc.things
    coco = detection("coco", "train", roots["coco"])
    assert any(thing.spared for thing in coco.things[0])
    kept = usable(coco, spared=False, masks=True)
    assert not any(thing.spared for things in kept.things for thing in things)
    assert kept.things == [
        [thing for thing in things if not thing.spared] for things in coco.things
    ]


def test_images_without_an_object_are_left_out_and_the_rest_keep_theirs(roots):
    objects = detection("coco", "train", roots["coco"])
    things = [
        [],
        objects.things[1],
        [objects.things[2][0]._replace(box=(5, 5, 5, 9))],
        objects.things[3],
    ]
    kept = usable(replace(objects, things=things), spared=False, masks=True)
    assert kept.ids == [objects.ids[1], objects.ids[3]]
    assert kept.things == [objects.things[1], objects.things[3]]
    assert torch.equal(kept.read(1), objects.read(3))
    with pytest.raises(ValueError, match="none of the 4 training images has an object"):
        usable(replace(objects, things=[[], [], [], []]), spared=False, masks=False)


def test_a_mirrored_image_has_its_objects_where_they_show(roots):
    image, target = detection("coco", "train", roots["coco"])[1]
    flipped, flipped_target = mirrored(image, target)
    for box, mask in zip(flipped_target["boxes"], flipped_target["masks"], strict=True):
        rows, columns = mask.nonzero().unbind(1)
        assert box[0] - 1 <= columns.min() and columns.max() <= box[2] + 1
        # an object has one colour, unlike the noise around it
        assert flipped[:, rows, columns].float().std(1).max() < 20
    again, target_again = mirrored(flipped, flipped_target)
    assert torch.equal(again, image)
    assert all(torch.equal(target_again[key], target[key]) for key in target)


def fingerprints(objects, **changes):
    """Return one number for each image of each batch; it changes if the image is mirrored."""
    arguments = {"batch": 2, "count": 6, "flip": 0.5, "seed": 0} | changes
    return [
        [float(image.double().cumsum(2).mean()) for image in images]
        for images, _ in batches(objects, **arguments)
    ]


def test_epochs_follow_each_other_in_orders_of_their_own(roots):
    objects = detection("coco", "train", roots["coco"])
    row = [image for batch in fingerprints(objects, flip=0) for image in batch]
    assert len(set(row[:4])) == 4 and sorted(row[:4]) == sorted(row[4:8]) == sorted(row[8:])
    assert len({tuple(row[start : start + 4]) for start in (0, 4, 8)}) > 1
    # a batch may be longer than an epoch
    assert fingerprints(objects, batch=6, count=2, flip=0) == [row[:6], row[6:]]
    upright = set(row)
    is_mirrored = [image not in upright for batch in fingerprints(objects) for image in batch]
    assert 2 <= sum(is_mirrored) <= 10
    assert all(image not in upright for batch in fingerprints(objects, flip=1) for image in batch)


def test_what_is_drawn_depends_on_the_seed_alone(roots):
    objects = detection("coco", "train", roots["coco"])
    first = fingerprints(objects)
    torch.manual_seed(99)
    assert fingerprints(objects) == first != fingerprints(objects, seed=1)


def test_ranks_share_the_batch_of_a_single_process(roots, monkeypatch):
    objects = detection("coco", "train", roots["coco"])
    whole = fingerprints(objects, batch=4)
    monkeypatch.setattr(dist, "world", lambda: 2)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(dist, "rank", lambda rank=rank: rank)
        parts.append(fingerprints(objects, batch=4))
    assert [a + b for a, b in zip(*parts, strict=True)] == whole
    message = "a batch of 3 images cannot be divided equally among 2 ranks"
    with pytest.raises(ValueError, match=message):
        fingerprints(objects, batch=3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_and_the_backbone_moves(roots, kind):
    net, objects, settings = training(roots, kind)
    trunk = net.backbone if kind == "c4" else net.backbone.body
    before = copy.deepcopy(trunk.state_dict())
    losses = detect.fine_tune(net, objects, quick(settings, iterations=16, warmup=2), seed=0)
    assert len(losses) == 16 and sum(losses[-4:]) < 0.8 * sum(losses[:4])
    changed = [not torch.equal(value, before[key]) for key, value in trunk.state_dict().items()]
    assert all(changed)  # including the first convolution: nothing is frozen


def test_the_statistics_of_the_test_are_the_mean_over_the_last_batches(roots):
    net, objects, settings = training(roots, "c4")
    means = []
    variances = []

    def record(module, inputs):
        means.append(inputs[0].mean((0, 2, 3)))
        variances.append(inputs[0].var((0, 2, 3)))

    net.backbone.bn1.register_forward_pre_hook(record)
    detect.fine_tune(net, objects, quick(settings, iterations=2, precise=3), seed=0)
    torch.testing.assert_close(net.backbone.bn1.running_mean, torch.stack(means[2:]).mean(0))
    torch.testing.assert_close(net.backbone.bn1.running_var, torch.stack(variances[2:]).mean(0))
    assert net.backbone.bn1.momentum == 0.1


def test_weights_decay_and_batch_norms_do_not(roots):
    net, objects, settings = training(roots, "fpn")
    before = {key: value.clone() for key, value in net.named_parameters()}
    net.forward = lambda images, targets: {"none": sum(0 * p.sum() for p in net.parameters())}
    detect.fine_tune(
        net, objects, quick(settings, iterations=1, precise=0, lr=0.5, decay=0.1), seed=0
    )
    norms = {
        f"{key}.{leaf}"
        for key, module in net.named_modules()
        if hasattr(module, "running_mean")
        for leaf in ("weight", "bias")
    }
    for key, value in net.named_parameters():
        torch.testing.assert_close(
            value, before[key] * (1 if key in norms else 1 - 0.5 * 0.1), msg=key
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_gives_the_same_again_and_changes_nothing_of_its_callers(roots, kind):
    name, settings = KINDS[kind]
    settings = quick(settings, iterations=2)
    small = task(roots, name)
    before = copy.deepcopy(small.backbone.state_dict())
    random_state = torch.get_rng_state()
    first = detect.run(small, settings)
    assert torch.equal(torch.get_rng_state(), random_state)
    after = small.backbone.state_dict()
    assert all(torch.equal(value, before[key]) for key, value in after.items())
    assert not small.backbone.training
    assert not any(p.requires_grad for p in small.backbone.parameters())
    torch.manual_seed(7)
    assert detect.run(small, settings) == first
    assert first.n == 2 and first.settings["lr"] == settings.lr and 0 <= first.value <= 100
    assert first.split == ("test" if kind == "c4" else "val")
    assert first.unit == ("% mask AP" if kind == "mask-fpn" else "% AP")
    assert {"AP50", "AP75"} <= first.more.keys()
    assert ("box AP" in first.more) == (kind == "mask-fpn")


def test_another_seed_is_another_training(roots):
    losses = []
    for seed in (0, 0, 1):
        net, objects, settings = training(roots, "c4")
        torch.manual_seed(0)
        losses.append(detect.fine_tune(net, objects, quick(settings), seed=seed))
    assert losses[0] == losses[1] != losses[2]


def test_the_protocols_run_these_settings_on_these_data(monkeypatch):
    expected = {
        "detect-voc": (detect.VOC, "voc07+12"),
        "detect-coco": (detect.COCO, "coco"),
        "detect-eqco": (detect.COCO_AS_PRINTED, "coco"),
        "segment-coco": (detect.MASKS, "coco"),
    }
    for name, (settings, data) in expected.items():
        protocol = protocols()[name]
        monkeypatch.setattr(detect, "run", lambda task, settings: (task, settings))
        assert protocol.data == data and protocol.run("the task") == ("the task", settings)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"detector": "yolo"}, "one of c4, fpn, mask-fpn"),
        ({"rule": "sqrt"}, "linear or fixed"),
        ({"batch": 0}, "at least 1, got 0 and 24000"),
        ({"iterations": 0}, "at least 1, got 16 and 0"),
        ({"warmup": -1}, "must not be negative, got -1 and 200"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": math.nan}, "lr must be above 0"),
        ({"flip": 2.0}, "flip between 0 and 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        replace(detect.VOC, **wrong)


def test_data_without_boxes_or_outlines_are_refused(roots):
    with pytest.raises(ValueError, match=r"\(voc07, voc07\+12, coco\), but cifar10 has"):
        detect.run(scenes.task(roots["coco"], "cifar10"), quick(detect.VOC))
    with pytest.raises(ValueError, match="segmentation needs outlines of the objects"):
        detect.run(task(roots, "voc07+12"), quick(detect.MASKS))


def test_what_is_missing_is_said_before_the_training(roots, monkeypatch, tmp_path):
    monkeypatch.setattr(detect, "fine_tune", lambda *_, **__: pytest.fail("trained first"))
    with pytest.raises(FileNotFoundError, match="coco was not found"):
        detect.run(scenes.task(tmp_path, "coco"), quick(detect.COCO))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    with pytest.raises(ValueError, match="needs a ResNet"):
        detect.run(task(roots, "coco", net=net), quick(detect.COCO))
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(ValueError, match=r"pip install 'antipode\[detection\]'"):
        detect.run(task(roots, "coco"), quick(detect.COCO))


def test_a_loss_that_is_no_number_ends_the_run(roots):
    message = r"loss is (nan|inf) at iteration \d+: use a smaller learning rate"
    with pytest.raises(ValueError, match=message):
        detect.run(task(roots, "voc07+12"), quick(detect.VOC, lr=1e12, iterations=20))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_lifts_the_precision_of_an_untrained_head(tmp_path, kind):
    name, settings = KINDS[kind]
    write = scenes.voc if name == "voc07+12" else scenes.coco
    root = write(tmp_path / "scenes", train=96, test=16)
    options = {
        "sides": (96,),
        "anchors": (8, 16, 32, 48, 64),
        "width": 32,
        "rois": 32,
        "batch": 4,
        "warmup": 20,
    }
    trained = quick(settings, iterations=300, falls=(220, 270), precise=8, **options)
    small = scenes.task(root, name)
    untrained = detect.run(small, replace(trained, iterations=1, falls=(), lr=1e-9))
    result = detect.run(small, trained)
    print(kind, untrained.value, result.value, result.more)
    assert untrained.value < 2 and result.value > 20 and result.more["AP50"] > 50


@COCO
@pytest.mark.parametrize("kind", ["fpn", "mask-fpn"])
def test_photographs_are_learnt_from(kind):
    """Real COCO annotations have crowds, objects of several polygons, and 80 classes."""
    small = scenes.task(DATA / "coco-mini", "coco", stem="imagenet")
    small.splits = load("coco", DATA / "coco-mini")
    anchors = (8, 16, 32, 64, 128)
    result = detect.run(small, quick(KINDS[kind][1], sides=(128,), longest=256, anchors=anchors))
    assert result.n == 8 and 0 <= result.value <= 100


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.xdist_group("ranks")
def test_two_ranks_train_one_detector(roots, tmp_path):
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "-m",
        "tests.evaluation.test_detect",
        str(roots["coco"]),
        str(tmp_path),
    ]
    ranks = [subprocess.Popen([*command, str(rank)], env=env) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first["losses"] == second["losses"]  # the means over both ranks
    assert not {*first["images"]} & {*second["images"]}  # each rank trained on its own images
    start = detect.build(scenes.task(roots["coco"], "coco"), 3, quick(detect.COCO)).state_dict()
    for key, value in first["state"].items():
        assert torch.equal(value, second["state"][key]), key
    assert any(not torch.equal(value, start[key]) for key, value in first["state"].items())


def one_rank(root, rank):
    torch.set_num_threads(1)
    torch.manual_seed(rank)  # the heads differ until all ranks take those of rank 0
    small = scenes.task(root, "coco", net=backbone("resnet10-slim"))
    objects = usable(detection("coco", "train", root), spared=False, masks=False)
    net = detect.build(small, 3, quick(detect.COCO))
    seen = []
    plain = detect.batches

    def watched(*arguments, **keywords):
        for images, targets in plain(*arguments, **keywords):
            seen.append([int(image.sum()) for image in images])
            yield images, targets

    detect.batches = watched
    losses = detect.fine_tune(net, objects, quick(detect.COCO, batch=4), seed=0)
    return {"losses": losses, "state": net.state_dict(), "images": seen[0]}


if __name__ == "__main__":
    import torch.distributed as process

    root = Path(sys.argv[1])
    folder = Path(sys.argv[2])
    rank = int(sys.argv[3])
    process.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    torch.save(one_rank(root, rank), folder / f"{rank}.pt")
    process.destroy_process_group()
