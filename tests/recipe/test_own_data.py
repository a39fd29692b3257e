"""Defaults for data that has no recipe of its own suit the number and size of images and the
device."""

import itertools

import pytest
import torch

from antipode.data.views.views import views
from antipode.nets.backbone import backbone
from antipode.nets.weight_file import About
from antipode.papers import build, methods
from antipode.recipe.layer import Derived
from antipode.recipe.own_data import LARGEST, OwnData, batch_size, own_defaults, view_size
from antipode.recipe.resolve import resolve
from antipode.types import Batch

CASES = list(itertools.product((540, 5_000, 100_000), (64, 224), (True, False)))
QUEUES = {"mocov1": "queue", "mocov2": "queue", "jcl": "queue", "adco": "bank"}


def suited(own, method="dcl", **asked):
    return resolve(method=method, data="folder:x", images=own.images, own=own, overrides=asked)


def steps(recipe, images):
    return images // recipe.train.batch * recipe.train.epochs


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_run_has_enough_steps_and_points_in_its_curves(case):
    own = OwnData(*case)
    recipe = suited(own)
    total = steps(recipe, own.images)
    assert total >= 300 and own.images // recipe.train.batch >= 8
    assert total // recipe.monitor.log_every >= 50
    assert total // recipe.monitor.health_every >= 50
    assert recipe.train.checkpoint_every <= max(1, recipe.train.epochs // 10)
    assert own.size / 2 < recipe.views.size <= min(own.size, LARGEST[own.gpu]) or not own.gpu
    assert recipe.views.size <= min(own.size, LARGEST[own.gpu])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("method", QUEUES)
def test_no_queue_is_smaller_than_the_batch_or_larger_than_the_images(method, case):
    own = OwnData(*case)
    for batch in (None, 128, 300):
        asked = {} if batch is None else {"train.batch": batch}
        recipe = suited(own, method, **asked)
        size = recipe.method.arguments[QUEUES[method]]
        assert recipe.train.batch <= size <= own.images


def test_few_images_get_the_documented_values():
    def chosen(*facts):
        recipe = suited(OwnData(*facts))
        train = recipe.train
        return (
            *(recipe.backbone.name, recipe.backbone.stem, recipe.views.size),
            *(train.batch, train.epochs),
        )

    assert chosen(540, 64, True) == ("resnet18", "small", 64, 64, 400)
    assert chosen(540, 224, True) == ("resnet18", "imagenet", 224, 64, 400)
    assert chosen(540, 224, False) == ("resnet10-slim", "half", 64, 64, 50)
    assert chosen(5_000, 100, True) == ("resnet18", "half", 96, 256, 200)
    assert chosen(100_000, 224, True) == ("resnet50", "imagenet", 224, 256, 100)
    assert chosen(100_000, 28, False) == ("resnet10-slim", "half", 28, 128, 10)
    assert [batch_size(OwnData(n, 64, True)) for n in (2, 10, 16, 100, 300)] == [2, 8, 16, 16, 32]
    sides = [view_size(OwnData(540, side, True)) for side in (4, 28, 47, 64, 100, 224)]
    assert sides == [8, 28, 32, 64, 96, 224]


def test_what_the_user_gives_holds_and_other_defaults_follow_it():
    own = OwnData(540, 224, False)
    short = suited(own, **{"train.epochs": 3, "train.batch": 32})
    assert (short.train.epochs, short.train.batch, short.monitor.log_every) == (3, 32, 1)
    assert suited(own, **{"train.batch": 270}).train.epochs == 150  # at least 300 steps
    large = suited(own, **{"views.size": 128, "backbone.name": "resnet50"})
    assert (large.backbone.name, large.backbone.stem) == ("resnet50", "imagenet")
    assert large.replaced["backbone.name"] == "resnet10-slim"
    rare = suited(own, **{"monitor.log_every": 7})
    assert rare.monitor.log_every == 7


def test_published_data_sets_and_unknown_data_keep_their_settings():
    own = OwnData(540, 64, False)
    for name in ("cifar10.mocov2", "shapes.dcl", "imagenet.simclr"):
        assert resolve(name, own=own) == resolve(name)
    assert resolve(method="dcl", data="folder:x").backbone.name == "resnet50"


def test_every_default_says_where_it_comes_from():
    recipe = suited(OwnData(540, 64, False))
    keys = ("backbone.name", "views.size", "train.batch", "train.epochs", "monitor.log_every")
    for key in (*keys, "monitor.health_every", "backbone.stem", "train.checkpoint_every"):
        assert recipe.sources[key].text.startswith("ours: "), key
    # intervals follow the length of the run, and the stem the size of the views
    assert isinstance(recipe.sources["monitor.log_every"], Derived)
    shorter = resolve(recipe, own=OwnData(540, 64, False), overrides={"train.epochs": 10})
    assert shorter.monitor.log_every == 1 and shorter.train.epochs == 10


def test_weights_to_start_from_decide_the_network():
    own = OwnData(540, 64, False)
    start = own_defaults(own, {"backbone.weights": "torchvision"}, About()).layer
    assert start["backbone.name"][0] == "resnet18" and start["backbone.stem"][0] == "imagenet"
    stated = own_defaults(own, {"backbone.weights": "x"}, About("resnet34", "small")).layer
    assert (stated["backbone.name"][0], stated["backbone.stem"][0]) == ("resnet34", "small")


@pytest.mark.parametrize("method", [name for name in methods() if name != "custom"])
def test_every_method_takes_a_step_with_the_defaults_for_few_images(method):
    recipe = suited(OwnData(540, 32, False), method)
    make = views(recipe.views.policy, size=recipe.views.size, **recipe.views.arguments)
    net = backbone(recipe.backbone.name, stem=recipe.backbone.stem)
    learner = build(method, net, **recipe.method.arguments)
    ids = torch.arange(recipe.train.batch)
    generator = torch.Generator().manual_seed(0)
    pixels = (len(ids), 3, 32, 32)
    images = torch.randint(0, 256, pixels, dtype=torch.uint8, generator=generator)
    learner.before_step(0.0)
    out = learner(Batch(make(images, generator), ids))
    out.loss.backward()
    learner.after_step(out)
    assert out.loss.isfinite()
