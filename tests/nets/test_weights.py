"""Tests of weights in files: all layouts, exact copies, and errors in one sentence."""

import argparse
import fractions
import itertools
import json
import math
import urllib.request
import warnings
import zipfile
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import Dataset

import antipode
from antipode.nets import weights
from antipode.nets.backbone import RESNETS, backbone
from antipode.nets.layouts import LeftOut, find, flat
from antipode.nets.weight_file import About, Normal, Unchecked, about, read
from antipode.papers import build

SLIM = "resnet10-slim"


def lively(net):
    """Return the net with batch-norm statistics that differ from the initial ones."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.num_batches_tracked += 7
    return net.eval()


def slim(stem="small"):
    return lively(backbone(SLIM, stem=stem))


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def prefixed(state, prefix):
    return {prefix + name: value for name, value in state.items()}


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_a_backbone_comes_back_to_the_bit(tmp_path, memory):
    net = slim().to(memory_format=memory)
    weights.write(net, tmp_path / "b.safetensors")
    assert equal(
        read(tmp_path / "b.safetensors"),
        {k: v.contiguous() for k, v in net.state_dict().items()},
    )


def test_a_wrapped_network_is_written_under_its_own_names(tmp_path):
    own = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    wrapped = backbone(own)
    weights.write(wrapped, tmp_path / "b.safetensors")
    assert equal(read(tmp_path / "b.safetensors"), own.state_dict())
    again = backbone(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    weights.start(again, "own", str(tmp_path / "b.safetensors"))
    assert equal(again.state_dict(), wrapped.state_dict())


def zeros(state):
    """Return another network of the same form."""
    return {name: value * 0 for name, value in state.items()}


def numbered(state, numbers=(0, 1, 4, 5, 6, 7)):
    """Return the names of a Sequential of a ResNet's children."""
    children = ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4")
    number = dict(zip(children, map(str, numbers), strict=True))
    split = {name: name.partition(".") for name in state}
    return {f"{number[split[k][0]]}.{split[k][2]}": value for k, value in state.items()}


FC = {"fc.weight": torch.ones(10, 128), "fc.bias": torch.ones(10)}
HEAD = {"0.weight": torch.ones(8, 128), "0.bias": torch.ones(8), "2.weight": torch.ones(8, 8)}

# each layout, and what the warning has to name as left out
LAYOUTS = {
    "torchvision": (lambda s: s | FC, ["fc"]),
    "bare": (lambda s: s, []),
    "ddp": (lambda s: {"model": prefixed(s, "module."), "epoch": 3}, []),
    "compiled": (lambda s: prefixed(s, "_orig_mod."), []),
    "moco": (
        lambda s: {
            "epoch": 200,
            "arch": "resnet50",
            "state_dict": {
                **prefixed(s, "module.encoder_q."),
                **prefixed(HEAD, "module.encoder_q.fc."),
                **prefixed(zeros(s), "module.encoder_k."),
                "module.queue": torch.ones(2, 2),
            },
            "optimizer": {
                "state": {0: {"momentum_buffer": torch.ones(2)}},
                "param_groups": [{"lr": 0.03}],
            },
        },
        ["encoder_k", "fc", "optimizer", "queue"],
    ),
    "moco v3": (
        lambda s: {
            "state_dict": {
                **prefixed(s | prefixed(HEAD, "fc."), "module.base_encoder."),
                **prefixed(zeros(s), "module.momentum_encoder."),
                **prefixed(HEAD, "module.predictor."),
            }
        },
        ["fc", "momentum_encoder", "predictor"],
    ),
    "simsiam": (
        lambda s: {
            "state_dict": {**prefixed(s, "module.encoder."), **prefixed(HEAD, "module.predictor.")}
        },
        ["predictor"],
    ),
    "patrickhua": (
        lambda s: {
            "state_dict": {
                **prefixed(s, "backbone."),
                **prefixed(HEAD, "projector.layer1."),
                **prefixed({k: v.clone() for k, v in s.items()}, "encoder.0."),
                **prefixed(HEAD, "encoder.1.layer1."),
            }
        },
        ["1", "projector"],
    ),
    "lucidrains": (
        lambda s: {
            **prefixed(s | FC, "learner.net."),
            **prefixed(s | FC, "learner.online_encoder.net."),
            **prefixed(HEAD, "learner.online_encoder.projector."),
            **prefixed(zeros(s), "learner.target_encoder.net."),
            **prefixed(HEAD, "learner.online_predictor."),
        },
        ["fc", "online_predictor", "projector", "target_encoder"],
    ),
    "swav": (
        lambda s: prefixed(
            {**s, **prefixed(HEAD, "projection_head."), "prototypes.weight": torch.ones(30, 8)},
            "module.",
        ),
        ["projection_head", "prototypes"],
    ),
    "dino": (
        lambda s: {
            "student": {**prefixed(s, "module.backbone."), **prefixed(HEAD, "module.head.mlp.")},
            "teacher": {**prefixed(zeros(s), "backbone."), **prefixed(HEAD, "head.mlp.")},
            "dino_loss": {"center": torch.ones(1, 8)},
            "args": argparse.Namespace(lr=0.1, arch="resnet50"),
        },
        ["dino_loss", "head", "teacher"],
    ),
    "lightly": (
        lambda s: {
            **prefixed(numbered(s), "backbone."),
            **prefixed(HEAD, "projection_head.layers."),
            **prefixed(numbered(zeros(s)), "backbone_momentum."),
        },
        ["backbone_momentum", "projection_head"],
    ),
    "a sequential alone": (numbered, []),
    "a sequential without max pool": (
        lambda s: {**prefixed(numbered(s, (0, 1, 3, 4, 5, 6)), "f."), **prefixed(HEAD, "g.")},
        ["g"],
    ),
    "shortcut": (
        lambda s: {
            "model": {
                f"module.encoder.{name.replace('downsample', 'shortcut')}": value
                for name, value in s.items()
            }
            | prefixed(HEAD, "module.head.")
        },
        ["head"],
    ),
    "lightning": (
        lambda s: {
            "pytorch-lightning_version": "2.5",
            "hyper_parameters": {"lr": 0.1},
            "state_dict": {
                **prefixed(s, "backbone."),
                **prefixed(zeros(s), "momentum_backbone."),
                "classifier.weight": torch.ones(2, 2),
                "projector.0.weight": torch.ones(2, 2),
            },
        },
        ["classifier", "momentum_backbone", "projector"],
    ),
    "vissl": (
        lambda s: {
            "classy_state_dict": {
                "base_model": {"model": {"trunk": prefixed(s, "_feature_blocks.")}}
            }
        },
        [],
    ),
    "average": (lambda s: {"state_dict": s, "state_dict_ema": zeros(s)}, ["state_dict_ema"]),
    "teacher alone": (lambda s: {"teacher": prefixed(s, "backbone.")}, []),
    "another resnet beside it": (
        lambda s: {
            "small": s,
            "big": {name: torch.ones(7, 7) for name in backbone("resnet18").state_dict()},
        },
        ["big"],
    ),
    "half precision": (
        lambda s: {name: v.half() if v.is_floating_point() else v for name, v in s.items()},
        [],
    ),
    "before 2019": (
        lambda s: {name: value for name, value in s.items() if "num_batches" not in name},
        [],
    ),
    "counters as floats": (
        lambda s: {name: value.float() for name, value in s.items()},
        [],
    ),
}
FOLLOWERS = ("moco", "moco v3", "lucidrains", "dino", "lightly", "lightning", "average")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    # a .tar is read as a .pth; other tests read some
    "suffix",
    [".pth", pytest.param(".tar", marks=pytest.mark.slow), ".safetensors"],
)
def test_the_network_is_found_wherever_a_file_has_it(tmp_path, layout, suffix):
    theirs, ours = slim(), slim()
    change, left_out = LAYOUTS[layout]
    state = change({name: value.clone() for name, value in theirs.state_dict().items()})
    path = tmp_path / f"w{suffix}"
    if suffix == ".safetensors":
        save_file({k: v.clone() for k, v in flat(state, path).items()}, path)
    else:
        torch.save(state, path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weights.start(ours, SLIM, str(path), "small")
    if layout == "half precision":
        assert all(
            torch.equal(v, theirs.state_dict()[k].half().to(v))
            for k, v in ours.state_dict().items()
        )
    else:
        assert equal(ours.state_dict(), theirs.state_dict())
    said = [str(one.message) for one in caught if one.category is LeftOut]
    assert len(said) == bool(left_out or layout == "teacher alone")
    if left_out:
        assert said[0].endswith(f"left out: {', '.join(left_out)}") and str(path) in said[0]
        assert ("the online network is used" in said[0]) == (layout in FOLLOWERS)
    if layout == "teacher alone":
        assert "no online network is in the file" in said[0]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_sequential_of_torchvisions_children_gives_torchvisions_features(tmp_path, name):
    theirs = lively(torchvision.models.get_model(name))
    cut = nn.Sequential(*list(theirs.children())[:-1])
    torch.save({f"backbone.{k}": v for k, v in cut.state_dict().items()}, tmp_path / "w.pth")
    net = antipode.load_backbone(f"file:{tmp_path / 'w.pth'}@{name}")
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(net(image), cut(image).flatten(1))


def test_every_resnet_is_found_as_a_sequential_of_its_children(tmp_path):
    for name in RESNETS:
        with torch.device("meta"):
            net = backbone(name)
        state = net.state_dict()
        found = find(prefixed(numbered(state), "model."), net, tmp_path)
        assert found.state.keys() == state.keys() and not found.remark
        assert all(found.state[key] is value for key, value in state.items())


def test_a_run_folder_is_a_start(tmp_path):
    theirs, ours = slim(), slim()
    weights.write(theirs, tmp_path / "backbone.safetensors")
    weights.start(ours, SLIM, str(tmp_path), "small")
    assert equal(ours.state_dict(), theirs.state_dict())


def test_a_checkpoint_of_ours_starts_with_the_online_network(tmp_path):
    learner, ours = build("mocov2", SLIM, stem="small"), slim()
    with torch.no_grad():
        torch._foreach_add_(list(learner.online.parameters()), 1)
    torch.save({"learner": learner.state_dict(), "step": 3}, tmp_path / "last.pt")
    with pytest.warns(LeftOut, match="the online network is used.* left out: head, objective, "):
        weights.start(ours, SLIM, str(tmp_path / "last.pt"), "small")
    assert equal(ours.state_dict(), learner.backbone.state_dict())
    assert not equal(ours.state_dict(), learner.twin.net.backbone.state_dict())


def test_a_started_backbone_starts_its_twin_too(tmp_path):
    theirs, ours = slim(), slim()
    weights.write(theirs, tmp_path / "b.safetensors")
    weights.start(ours, SLIM, str(tmp_path / "b.safetensors"), "small")
    learner = build("mocov2", ours)
    assert equal(learner.backbone.state_dict(), theirs.state_dict())
    assert equal(learner.twin.net.backbone.state_dict(), theirs.state_dict())


def without(state, *names):
    return {name: value for name, value in state.items() if name not in names}


REFUSED = {
    "lacks": (
        lambda s: without(s, "layer4.0.bn2.bias", "bn1.bias"),
        "lacks 2 of the backbone's tensors, .* bn1.bias",
    ),
    "extra": (
        lambda s: s | {"attention.weight": torch.ones(2)},
        "holds 1 tensors .* the first: attention.weight",
    ),
    "bias": (
        lambda s: s | {"conv1.bias": torch.ones(16)},
        "holds 1 tensors .* the first: conv1.bias",
    ),
    "deeper": (
        lambda s: s | {"layer4.1.conv1.weight": torch.ones(2)},
        "holds 1 tensors .*: layer4.1.conv1.weight",
    ),
    "stem": (
        lambda s: s | {"conv1.weight": torch.ones(16, 3, 7, 7)},
        r"stem differs: .*16, 3, 7, 7.*16, 3, 3, 3",
    ),
    "channels": (
        lambda s: s | {"conv1.weight": torch.ones(16, 1, 3, 3)},
        r"stem differs: .*16, 1, 3, 3.*16, 3, 3, 3",
    ),
    "shape": (
        lambda s: s | {"bn1.bias": torch.ones(32)},
        r"1 tensors .* other shapes, .*bn1.bias \(32\).*\(16\)",
    ),
    "numbers": (lambda s: s | {"bn1.bias": torch.full((16,), torch.nan)}, "NaN or infinite"),
    "other network": (
        lambda s: {"patch_embed.proj.weight": torch.ones(3)},
        "nothing in it is called conv1.weight",
    ),
    "two": (
        lambda s: {"a": s, "b": zeros(s)},
        "holds 2 different networks of this form, under 'a' and under 'b': save only the one",
    ),
    "three": (
        lambda s: {"a": s, "b": zeros(s), "c": s, "d_ema": s},
        "holds 2 different networks of this form, under 'a' and under 'b'",
    ),
    "two teachers": (
        lambda s: {"teacher": s, "ema": zeros(s)},
        "holds 2 different networks of this form, under 'ema' and under 'teacher'",
    ),
    "one bit apart": (
        lambda s: {"a": s, "b": s | {"bn1.bias": s["bn1.bias"] + 2**-20}},
        "holds 2 different networks",
    ),
    "list": (lambda s: list(s.values()), "holds a list, not a state dict"),
    "empty": (lambda s: {}, "no such backbone"),
    "complex": (
        lambda s: s | {"bn1.bias": torch.ones(16, dtype=torch.complex64)},
        "complex64 values in bn1.bias",
    ),
    "integers": (
        lambda s: s | {"conv1.weight": torch.ones(16, 3, 3, 3, dtype=torch.int8)},
        "int8 values in conv1.weight",
    ),
    "float8": (
        lambda s: s | {"bn1.bias": torch.ones(16).to(torch.float8_e4m3fn)},
        "float8_e4m3fn values in bn1.bias",
    ),
    "too large": (
        lambda s: s | {"bn1.bias": torch.full((16,), 1e300, dtype=torch.float64)},
        "too large for torch.float32, in bn1.bias",
    ),
    "sparse": (
        lambda s: s | {"bn1.bias": torch.ones(16).to_sparse()},
        "lacks 1 of the backbone's tensors, the first: bn1.bias",
    ),
    "deep": (lambda s: nested(s, 40), "nested more than 32 levels"),
    "long": (lambda s: prefixed(s, "a" * 1001), "names of more than 1000 characters"),
    "in itself": (lambda s: in_itself(), "no such backbone"),
    "laughs": (lambda s: laughs(30), "no such backbone"),
    "code": (
        lambda s: s | {"args": fractions.Fraction(1, 2)},
        "not trusted: save its state_dict alone",
    ),
}


def nested(content, depth):
    for _ in range(depth):
        content = {"a": content}
    return content


def in_itself():
    content = {"a": {}}
    content["a"]["b"] = content
    return content


def laughs(depth):
    """Return a small dictionary that would unfold to 2^depth others."""
    content = {"x": torch.ones(1)}
    for _ in range(depth):
        content = {"a": content, "b": content}
    return content


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_a_sentence_and_changes_nothing(tmp_path, case):
    change, sentence = REFUSED[case]
    net = slim()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.save(change(slim().state_dict()), tmp_path / "w.pth")
    with pytest.raises(ValueError, match=sentence) as error:
        weights.start(net, SLIM, str(tmp_path / "w.pth"), "small")
    assert "\n" not in str(error.value) and equal(before, net.state_dict())
    assert str(tmp_path / "w.pth") in str(error.value)


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors", "w.txt"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 cut short", b"\x80\x02}q\x00."])
def test_a_damaged_file_is_a_sentence(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"w\.") as error:
        weights.start(slim(), SLIM, str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent.pth"):
        weights.start(slim(), SLIM, str(tmp_path / "absent.pth"))
    with pytest.raises(FileNotFoundError, match=r"backbone\.safetensors"):
        weights.start(slim(), SLIM, str(tmp_path))


def test_torchvisions_weights_give_torchvisions_features(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    theirs = lively(torchvision.models.resnet18())
    entry = torchvision.models.ResNet18_Weights.IMAGENET1K_V1
    place = tmp_path / "hub" / "checkpoints" / entry.url.rsplit("/", 1)[1]
    place.parent.mkdir(parents=True)
    torch.save(theirs.state_dict(), place)
    net, image = backbone("resnet18").eval(), torch.randn(2, 3, 64, 64)
    weights.start(net, "resnet18", "torchvision")
    theirs.fc = nn.Identity()
    assert torch.equal(net(image), theirs(image))
    with pytest.raises(ValueError, match=r"stem differs: .*64, 3, 7, 7.*64, 3, 3, 3"):
        weights.start(backbone("resnet18", stem="small"), "resnet18", "torchvision")


def test_torchvisions_weights_without_a_network_say_where_to_put_them(tmp_path, monkeypatch):
    def unreachable(*_, **__):
        raise URLError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    monkeypatch.setattr(torch.hub, "urlopen", unreachable)
    with pytest.raises(
        ValueError,
        match=r"could not be downloaded .*no route to host.*without a network connection, put http",
    ):
        weights.start(backbone("resnet18"), "resnet18", "torchvision")


@pytest.mark.parametrize("name", [SLIM, "resnet50x2", "timm:vit_tiny_patch16_224"])
def test_a_network_that_torchvision_has_no_weights_for(name):
    with pytest.raises(ValueError, match=f"torchvision has no ImageNet weights for {name}"):
        weights.start(slim(), name, "torchvision")


class Listed(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, at):
        return self.items[at]


class Backwards(nn.Module):
    """A network whose layers are used in reverse alphabetical order."""

    def __init__(self, channels=3):
        super().__init__()
        self.stem = nn.Conv2d(channels, 6, 3, 2)
        self.body = nn.Conv2d(6, 4, 3, 2)

    def forward(self, x):
        return self.body(self.stem(x).relu())


@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_is_opened_again_whatever_its_layers_are_called(tmp_path, channels):
    """Files list weights in alphabetical order, so the first need not be the first layer."""
    net = Backwards(channels)
    pixels = torch.randint(0, 256, (40, channels, 16, 16), dtype=torch.uint8)
    data = [(image, 0) for image in pixels]
    asked = {
        "epochs": 1,
        "batch": 16,
        "overrides": {"views.size": 16, "views.scale": [0.5, 1.0]},
        "quiet": True,
    }
    run = antipode.pretrain(
        method="simclr", data=Listed(data), backbone=net, out=tmp_path / "run", **asked
    )
    loaded = antipode.load_backbone(run)
    assert all(
        torch.equal(a, b)
        for a, b in zip(net.state_dict().values(), loaded.net.state_dict().values(), strict=True)
    )
    assert len(antipode.embed(run, Listed(data)).x) == 40
    assert antipode.analyse(run, ["spectrum"], data=Listed(data))["run"]["spectrum"]["values"]


def test_a_named_network_takes_the_channels_that_its_own_first_layer_has():
    for name, stem in (("resnet10-slim", "small"), ("resnet18", "imagenet")):
        for channels in (1, 3, 5):
            kept = dict(sorted(backbone(name, stem=stem, channels=channels).state_dict().items()))
            net, stored_channels = weights.reopened(kept, name, stem)
            assert (
                stored_channels == channels and net.conv1.weight.shape == kept["conv1.weight"].shape
            )


def test_a_network_of_timm_is_opened_again():
    pytest.importorskip("timm")
    for channels in (1, 3):
        kept = dict(
            sorted(weights.tensors(backbone("timm:convnext_atto", channels=channels)).items())
        )
        net, stored_channels = weights.reopened(kept, "timm:convnext_atto", None)
        weights.fit(weights.bare(net), kept, "kept")
        assert stored_channels == channels


# The header and its digest

ABOUT = About(SLIM, "small", 3, 32, "simclr-cifar", Normal((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))


def tiny():
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))


def test_a_file_says_what_it_holds(tmp_path):
    weights.write(slim(), tmp_path / "b.safetensors", ABOUT)
    assert about(tmp_path / "b.safetensors") == ABOUT
    weights.write(slim(), tmp_path / "backbone.safetensors", ABOUT)
    assert about(tmp_path) == ABOUT
    weights.write(slim(), tmp_path / "c.safetensors")
    assert about(tmp_path / "c.safetensors") == about(tmp_path / "absent.safetensors") == About()


def test_entries_of_other_software_are_ignored(tmp_path):
    file = tmp_path / "theirs.safetensors"
    entries = {"stem": "conv", "size": "large", "channels": "-3", "pixels": "[[" * 50000}
    save_file(tiny().state_dict(), file, metadata=entries)
    assert about(file) == About()
    save_file(tiny().state_dict(), file, metadata={"channels": "9" * 5000, "size": "10000000"})
    assert about(file) == About() and read(file).keys() == tiny().state_dict().keys()


def test_equal_networks_give_equal_files(tmp_path):
    net = slim()
    for name in "abcdef":
        weights.write(net, tmp_path / name, ABOUT)
    assert len({(tmp_path / name).read_bytes() for name in "abcdef"}) == 1


@pytest.mark.parametrize("bits", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_any_byte_is_noticed(tmp_path, bits):
    """Also in the header: a flip there could change the stem, the mean or a tensor's name."""
    file = tmp_path / "backbone.safetensors"
    net = nn.Conv2d(1, 2, 1, bias=False)
    weights.write(net, file, About("resnet18", "small", 1, 8, "eval", Normal((0.5,), (0.2,))))
    good = file.read_bytes()
    assert read(file)
    for byte, bit in itertools.product(range(len(good)), range(bits)):
        bad = bytearray(good)
        bad[byte] ^= 1 << (bit + byte) % 8
        file.write_bytes(bad)
        with pytest.raises(ValueError, match=r"backbone\.safetensors") as error:
            read(file)
        assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 300, -1, -8, -64])
def test_a_file_that_was_cut_off_is_noticed(tmp_path, cut):
    file = tmp_path / "backbone.safetensors"
    weights.write(tiny(), file, ABOUT)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"backbone\.safetensors"):
        read(file)


def test_tensors_that_are_exchanged_are_noticed(tmp_path):
    """Every byte is still there: the two batch-norm statistics have changed places."""
    file = tmp_path / "b.safetensors"
    weights.write(lively(tiny()), file)
    text = file.read_bytes()
    text = text.replace(b"1.bias", b"1.BIAS").replace(b"1.weight", b"1.bias")
    file.write_bytes(text.replace(b"1.BIAS", b"1.weight"))
    with pytest.raises(ValueError, match="damaged or was changed"):
        read(file)


def test_a_huge_header_is_not_read(tmp_path):
    file = tmp_path / "b.safetensors"
    file.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(ValueError, match="its header would have 4,611,686,018,427,387,904 bytes"):
        read(file)
    with pytest.raises(ValueError, match="its header would have"):
        about(file)


def test_a_file_of_a_newer_version_says_so(tmp_path):
    file = tmp_path / "b.safetensors"
    save_file(tiny().state_dict(), file, metadata={"antipode": "9"})
    with pytest.raises(ValueError, match="newer version of antipode"):
        read(file)


def test_only_a_runs_own_file_needs_a_digest(tmp_path):
    for name, count in (("theirs", 0), ("backbone", 1)):
        save_file(tiny().state_dict(), tmp_path / f"{name}.safetensors")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read(tmp_path / f"{name}.safetensors")
        assert [one.category for one in caught] == [Unchecked] * count


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_network_that_is_not_finite_is_not_written(tmp_path, value):
    file = tmp_path / "backbone.safetensors"
    weights.write(slim(), file, ABOUT)
    good = file.read_bytes()
    net = slim()
    with torch.no_grad():
        net.layer2[0].conv1.weight[3, 1, 2, 2] = value
    with pytest.raises(
        ValueError,
        match=r"backbone\.safetensors is not written: 1 of .* NaN .*: layer2.0.conv1.weight",
    ):
        weights.write(net, file, ABOUT)
    assert file.read_bytes() == good and list(tmp_path.iterdir()) == [file]


def test_a_network_that_is_too_large_for_float32_is_not_written(tmp_path):
    net = slim().double()
    with torch.no_grad():
        net.bn1.bias[0] = 1e300
    with pytest.raises(ValueError, match="is not written"):
        weights.write(net, tmp_path / "b.safetensors")
    assert not list(tmp_path.iterdir())


# torch files


class Evil:
    """An object whose pickle would create a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("legacy", [False, True])
def test_no_code_in_a_file_is_executed(tmp_path, legacy):
    """Also not inside the Namespace of options that many projects store."""
    content = slim().state_dict() | {"args": argparse.Namespace(evil=Evil(tmp_path / "made"))}
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ValueError, match="other content is not trusted"):
        weights.start(slim(), SLIM, str(tmp_path / "w.pth"), "small")
    assert not (tmp_path / "made").exists()


def changed_archive(source, target, change):
    """Write a copy of a zip archive whose records are changed, with their old checksums."""
    with zipfile.ZipFile(source) as archive:
        offsets = {one.filename: one.header_offset for one in archive.infolist()}
        sizes = {one.filename: one.file_size for one in archive.infolist()}
    content = bytearray(source.read_bytes())
    for name, offset in offsets.items():
        extra = int.from_bytes(content[offset + 28 : offset + 30], "little")
        start = offset + 30 + len(name) + extra
        change(name, memoryview(content)[start : start + sizes[name]])
    target.write_bytes(content)


def flip(name, record):
    if name.endswith("data/3"):
        record[5] ^= 64


def test_a_flipped_bit_in_a_torch_file_is_noticed(tmp_path):
    torch.save(slim().state_dict(), tmp_path / "w.pth")
    changed_archive(tmp_path / "w.pth", tmp_path / "bad.pth", flip)
    assert torch.load(tmp_path / "bad.pth", weights_only=True), "torch itself does not notice"
    with pytest.raises(ValueError, match=r"bad\.pth cannot be read .*CRC"):
        weights.start(slim(), SLIM, str(tmp_path / "bad.pth"), "small")


def test_a_torch_file_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(slim().state_dict(), tmp_path / "w.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    weights.start(slim(), SLIM, str(tmp_path / "w.pth"), "small")


def test_a_torch_file_that_would_unpack_to_more_than_its_size_is_not_unpacked(tmp_path):
    torch.save({"a": torch.zeros(1000, 1000)}, tmp_path / "w.pth")
    with (
        zipfile.ZipFile(tmp_path / "w.pth") as archive,
        zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for record in archive.infolist():
            packed.writestr(record.filename, archive.read(record))
    assert torch.load(tmp_path / "bomb.pth", weights_only=True)["a"].shape == (1000, 1000)
    with pytest.raises(ValueError, match=r"bomb\.pth .*its records would have 4,0"):
        weights.start(slim(), SLIM, str(tmp_path / "bomb.pth"), "small")


def test_an_expanded_tensor_takes_no_memory(tmp_path):
    """One number with the shape of 4 TB: no step before the check of shapes may copy it."""
    state = dict(slim().state_dict())
    state["conv1.weight"] = torch.ones(1).expand(16, 3, 2**18, 2**18)
    torch.save({"a": state, "b": state | {"x": torch.ones(1)}}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="stem differs"):
        weights.start(slim(), SLIM, str(tmp_path / "w.pth"), "small")


# The stem


@pytest.mark.parametrize("stem", ["small", "half"])
def test_a_stem_that_nothing_states_is_asked_for(tmp_path, stem):
    torch.save(slim(stem).state_dict(), tmp_path / "w.pth")
    with pytest.raises(
        ValueError,
        match=r"w.pth does not say which stem it has: its 3x3 convolution fits 'half' \(stride 2\) "
        r"or 'small' \(stride 1\); set backbone.stem=half or set backbone.stem=small",
    ):
        weights.start(slim(stem), SLIM, str(tmp_path / "w.pth"))
    weights.start(slim(stem), SLIM, str(tmp_path / "w.pth"), stem)


def test_imagenets_stem_needs_no_name(tmp_path):
    theirs, ours = slim("imagenet"), slim("imagenet")
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    weights.start(ours, SLIM, str(tmp_path / "w.pth"))
    assert equal(ours.state_dict(), theirs.state_dict())


def test_the_header_settles_the_stem(tmp_path):
    file = tmp_path / "b.safetensors"
    weights.write(slim("small"), file, ABOUT)
    weights.start(slim("small"), SLIM, str(file))
    for named in (None, "half"):
        with pytest.raises(ValueError, match=r"stem differs: .*b.safetensors has the stem 'small'"):
            weights.start(slim("half"), SLIM, str(file), named)
    weights.write(slim("small"), file, ABOUT._replace(stem="imagenet"))
    with pytest.raises(ValueError, match=r"first convolution in .* is 3x3, .*'imagenet' is 7x7"):
        weights.start(slim("small"), SLIM, str(file))


@pytest.mark.parametrize("place", ["backbone.safetensors", "checkpoints/last.pt"])
def test_the_recipe_of_a_run_settles_the_stem(tmp_path, place):
    """For runs of earlier versions, whose weights do not state it."""
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    if file.suffix == ".pt":
        torch.save({"learner": prefixed(slim().state_dict(), "online.backbone.")}, file)
    else:
        save_file(slim().state_dict(), file)
    (tmp_path / "recipe.json").write_text(json.dumps({"backbone": {"stem": "small"}}))
    weights.start(slim("small"), SLIM, str(file))
    with pytest.raises(ValueError, match="has the stem 'small' and the backbone has 'half'"):
        weights.start(slim("half"), SLIM, str(file))
    (tmp_path / "recipe.json").write_text("[" * 50000)
    with pytest.raises(ValueError, match="does not say which stem it has"):
        weights.start(slim("small"), SLIM, str(file))


def test_a_header_that_names_another_network_is_a_sentence(tmp_path):
    weights.write(slim(), tmp_path / "b.safetensors", ABOUT)
    with pytest.raises(ValueError, match=r"b.safetensors holds a resnet10-slim, not a resnet18"):
        weights.start(backbone("resnet18", stem="small"), "resnet18", f"{tmp_path}/b.safetensors")
