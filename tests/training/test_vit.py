"""Vision transformers of timm: they train, and every form of their run opens again."""

import warnings

import pytest
import torch

import antipode
from antipode.data.sources import shapes
from antipode.data.sources.source import Memory
from antipode.data.sources.splits import Splits
from antipode.nets.norm import BatchNorm
from antipode.recipe.resolve import resolve
from antipode.training.build import build
from antipode.training.health import measure

pytest.importorskip("timm")

NAME = "timm:vit_tiny_patch16_224?patch_size=8,depth=1,embed_dim=32,num_heads=2"
PATCH_4 = "timm:vit_tiny_patch16_224?img_size=32,patch_size=4,depth=2,embed_dim=64,num_heads=2"


PATCH_8 = PATCH_4.replace("patch_size=4", "patch_size=8")


def setup(method, name=NAME, images=128, **changes):
    """Build a vision transformer on the first drawings of `shapes`."""
    values = {"train.device": "cpu", "train.batch": 32, "train.epochs": 10, **changes}
    recipe = resolve(f"shapes.{method}", overrides={"backbone.name": name, **values})
    part = Memory(*shapes.draw(images, seed=0, split="train"))
    return build(recipe, Splits("shapes", part, part, None, 32))


def contrasts(made):
    """Train to the end, and return the loss of every step and the last output."""
    values = []
    for _, _, _, out, _ in made.run(0):
        values.append(float(out.metrics.get("contrast", out.loss)))
    return values, out


def test_a_vision_transformer_learns_and_does_not_collapse():
    made = setup("mocov3", **{"optim.network.lr": 8e-3, "method.hidden": 64, "method.dim": 32})
    patches = made.learner.backbone.net.patch_embed.proj
    before = patches.weight.clone()
    values, out = contrasts(made)
    assert sum(values[-8:]) / 8 < values[0] - 0.05, values
    health = measure(made.learner, out.keys)
    assert health["spread"] > 0.5 and health["rank"] > 5
    assert torch.equal(patches.weight, before), "the patch projection is frozen"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dcl", "mocov3"])
def test_a_vision_transformer_beats_itself_untrained_on_shapes(method, tmp_path):
    run = antipode.pretrain(
        f"shapes.{method}", backbone=PATCH_8, epochs=20, out=tmp_path / "run", quiet=True
    )
    losses = [row["loss"] for row in run.metrics() if "loss" in row]
    assert losses[-1] < losses[0]
    ranks = [row["rank"] for row in run.metrics() if "rank" in row]
    assert ranks[-1] > 5, "no collapse"
    score = antipode.evaluate(run, "knn20")["knn20"].value
    untrained = antipode.evaluate(f"random:{PATCH_8}", "knn20", out=tmp_path / "r")["knn20"].value
    assert score > untrained + 2


def test_the_recipe_of_a_transformer_is_the_papers():
    name = "timm:vit_small_patch16_224"
    large = resolve("imagenet.mocov3", flags={"backbone.name": name})
    network = large.optim["network"]
    assert (network.name, network.lr, network.rule, network.weight_decay) == (
        "adamw",
        1.5e-4,
        "linear",
        0.1,
    )
    assert (network.warmup, large.train.epochs, large.train.batch) == (40, 300, 4096)
    assert network.exclude and large.backbone.freeze_patches
    assert "MoCo v3" in large.sources["optim.network.lr"].text
    method = large.method.arguments
    assert (method["tau"], method["momentum"], method["dim"], method["hidden"]) == (
        0.2,
        0.99,
        256,
        4096,
    )


def test_every_method_takes_the_transformer_settings_and_resnets_do_not():
    for method in ("mocov2", "byol", "dcl", "simsiam"):
        flags = {"backbone.name": PATCH_4, "train.epochs": 150}
        recipe = resolve(f"cifar10.{method}", flags=flags)
        assert {group.name for group in recipe.optim.values()} == {"adamw"}
        assert recipe.optim["network"].warmup == 20
        assert recipe.backbone.freeze_patches
        assert not resolve(f"cifar10.{method}").backbone.freeze_patches
    given = resolve("cifar10.dcl", flags=flags, overrides={"optim.network.lr": 0.007})
    assert given.optim["network"].lr == 0.007, "the user's value counts"


def test_the_view_size_follows_from_the_name():
    recipe = resolve("cifar10.dcl", flags={"backbone.name": PATCH_4.replace("=32", "=48", 1)})
    assert recipe.views.size == 48
    with pytest.raises(ValueError, match=r"views.size=32 does not fit .*, which takes .* 48 px"):
        resolve(
            "cifar10.dcl",
            flags={"backbone.name": PATCH_4.replace("=32", "=48", 1)},
            overrides={"views.size": 32},
        )


def test_batch_norm_is_in_the_heads_of_a_transformer_only():
    for method, groups in (("mocov3", 1), ("byol", 1), ("custom", 4)):
        more = {"method.groups": 4} if method == "custom" else {}
        learner = setup(method, **more).learner
        assert not [part for part in learner.backbone.modules() if isinstance(part, BatchNorm)]
        heads = [part for part in learner.online.head.modules() if isinstance(part, BatchNorm)]
        assert heads and {part.groups for part in heads} == {groups}


def test_few_patches_cause_a_warning():
    with pytest.warns(UserWarning, match=r"into 4 patches, and fewer than 16 .*\?patch_size=4"):
        setup("dcl", NAME.replace("patch_size=8", "patch_size=16"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a tiny transformer for images of 8 px, stated by the view size alone."""
    name = "timm:vit_tiny_patch16_224?patch_size=2,depth=1,embed_dim=16,num_heads=2"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return antipode.pretrain(
            "digits.dcl",
            backbone=name,
            epochs=1,
            batch=700,
            device="cpu",
            out=tmp_path_factory.mktemp("vit") / "run",
            quiet=True,
        )


def test_the_backbone_of_a_run_opens_in_every_form(trained, tmp_path):
    """By the run, from its file with and without img_size, and as an export."""
    images = torch.randn(3, 1, 8, 8)
    expected = antipode.load_backbone(trained.path)(images)
    assert torch.equal(trained.backbone()(images), expected)
    file = trained.path / "backbone.safetensors"
    name = trained.recipe.backbone.name
    sized = name.replace("?", "?img_size=8,")
    for form in (f"file:{file}@{name}", f"file:{file}@{sized}"):
        assert torch.equal(antipode.load_backbone(form)(images), expected), form
    assert antipode.load_backbone(f"random:{sized}")(torch.zeros(1, 3, 8, 8)).shape == (1, 16)
    out = antipode.export(trained, "safetensors", tmp_path / "vit.safetensors")
    assert torch.equal(antipode.load_backbone(f"file:{out}@{name}")(images), expected)


def test_a_transformer_is_exported_for_timm_with_its_arguments(trained, tmp_path):
    import timm

    with pytest.warns(UserWarning, match=r"timm.create_model\('vit_tiny_patch16_224'") as caught:
        out = antipode.export(trained, "timm", tmp_path / "vit.pth")
    text = next(str(one.message) for one in caught if "create_model" in str(one.message))
    call = text[text.index("timm.create_model") :].replace("checkpoint_path=...", "**more")
    net = eval(call, {"timm": timm, "more": {"checkpoint_path": str(out)}}).eval()
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(net(images), trained.backbone()(images))


def test_a_transformer_is_scored_and_fine_tuned(trained, tmp_path):
    assert antipode.evaluate(trained, "knn20")["knn20"].value > 10
    model = antipode.finetune(
        trained, "digits", tmp_path / "model", epochs=1, batch=700, device="cpu", quiet=True
    )
    again = antipode.load_classifier(model.path)
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(again(images), model(images))
    assert again(images).shape == (2, 10)
