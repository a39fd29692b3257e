"""Networks of timm by name, with arguments."""

import pytest
import torch
from torch import nn

from antipode.nets import timm_net
from antipode.nets.backbone import backbone
from antipode.optim import make

pytest.importorskip("timm")

SMALL = "patch_size=8,depth=1,embed_dim=16,num_heads=2"
VIT = f"timm:vit_tiny_patch16_224?img_size=16,{SMALL}"


def test_arguments_keep_their_types():
    name = "timm:vit?img_size=64,drop_path_rate=0.1,qk_norm=true,norm=None,pool=avg"
    values = {"img_size": 64, "drop_path_rate": 0.1, "qk_norm": True, "norm": None, "pool": "avg"}
    assert timm_net.parse(name) == ("vit", values)
    assert timm_net.parse("timm:resnet18") == ("resnet18", {})


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "timm:vit?": "is not an argument: write timm:NAME\\?key=value",
        "timm:vit?img_size": "'img_size' in .* is not an argument",
        "timm:vit?img_size=": "is not an argument",
        "timm:?img_size=3": "names no model",
        "timm:vit?img_size=abc": "must be a number of pixels, not 'abc'",
        "timm:vit?depth=1,depth=2": "depth is given twice",
        "timm:vit?depth=1e999": "must be finite, not inf",
        "timm:vit?depth=99999999": "at most 8192, not 99999999",
        "timm:vit?num_classes=3": "num_classes cannot be set .*: a backbone has no classifier",
        "timm:vit?pretrained=true": "set backbone.weights",
    }.items(),
)
def test_wrong_arguments_are_one_sentence(name, words):
    with pytest.raises(ValueError, match=words) as error:
        timm_net.parse(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("timm:vit_tiny_patch16_22", None, "timm has no model .*, did you mean 'vit_tiny_patch16"),
        (VIT.replace("depth", "depht"), None, "has no argument 'depht', did you mean 'depth'"),
        (VIT.replace("num_heads=2", "num_heads=3"), None, "timm cannot build .*divisible"),
        (VIT, 32, "takes images of 16 px, but the views have 32 px: set views.size=16"),
        ("timm:resnet18?img_size=32", None, "resnet18 has no argument 'img_size'"),
    ],
)
def test_a_network_that_cannot_be_built_is_one_sentence(name, size, words):
    with pytest.raises(ValueError, match=words) as error:
        backbone(name, size=size)
    assert "\n" not in str(error.value)


def test_a_transformer_is_built_for_the_size_of_the_views():
    name = f"timm:vit_tiny_patch16_224?{SMALL}"
    net = backbone(name, size=24, channels=1)
    assert net(torch.zeros(2, 1, 24, 24)).shape == (2, 16)
    with pytest.raises(ValueError, match="does not accept 32 px images"):
        net.tried(1, 32)
    any_size = backbone(f"{name},dynamic_img_size=true", size=24)
    assert any_size.tried(3, 32).shape == any_size.tried(3, 24).shape == (1, 16)


def test_the_name_decides_what_is_a_vision_transformer():
    for name in ("timm:vit_small_patch16_224", VIT, "timm:deit3_small_patch16_224"):
        assert timm_net.is_vit(name)
    assert timm_net.is_vit("python:VisionTransformer")
    for name in ("resnet18", "timm:resnet18", "timm:levit_128", "python:Net", "timm:vitamin"):
        assert not timm_net.is_vit(name)


def test_norms_biases_tokens_and_positions_get_no_weight_decay():
    net = backbone(VIT)
    names = dict(net.named_parameters())
    embeddings = timm_net.embeddings(net)
    assert {id(p) for p in embeddings} == {id(names["net.cls_token"]), id(names["net.pos_embed"])}
    for kind in ("adamw", "lars"):
        optimiser = make(
            names.values(), name=kind, lr=0.1, weight_decay=0.1, exclude=True, embeddings=embeddings
        )
        decayed = {id(p) for p in optimiser.param_groups[0]["params"]}
        expected = {id(p) for name, p in names.items() if p.ndim > 1} - {id(p) for p in embeddings}
        assert decayed == expected
        assert [group["weight_decay"] for group in optimiser.param_groups] == [0.1, 0.0]


def test_the_patch_projection_can_be_frozen():
    net = backbone(VIT)
    timm_net.freeze_patch_projection(net)
    frozen = [name for name, value in net.named_parameters() if not value.requires_grad]
    assert frozen == ["net.patch_embed.proj.weight", "net.patch_embed.proj.bias"]
    assert timm_net.patches(net) == 4
    with pytest.raises(ValueError, match=r"freeze_patches=true needs a vision transformer"):
        timm_net.freeze_patch_projection(nn.Linear(2, 2))


@pytest.mark.slow  # the compiler alone takes seconds to import
def test_a_transformer_compiles_as_one_graph():
    net = backbone(VIT).eval()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(compiled(images), net(images))
