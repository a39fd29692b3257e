"""Tests of weights in files: all layouts, exact copies, and errors in one sentence."""

import argparse
import urllib.request
from urllib.error import URLError

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import Dataset

import antipode
from antipode.nets import weights
from antipode.nets.backbone import backbone
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
        weights.read(tmp_path / "b.safetensors"),
        {k: v.contiguous() for k, v in net.state_dict().items()},
    )


def test_a_wrapped_network_is_written_under_its_own_names(tmp_path):
    own = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    wrapped = backbone(own)
    weights.write(wrapped, tmp_path / "b.safetensors")
    assert equal(weights.read(tmp_path / "b.safetensors"), own.state_dict())
    again = backbone(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    weights.start(again, "own", str(tmp_path / "b.safetensors"))
    assert equal(again.state_dict(), wrapped.state_dict())


LAYOUTS = {
    "torchvision": lambda s: {**s, "fc.weight": torch.ones(10, 128), "fc.bias": torch.ones(10)},
    "timm": lambda s: {**s, "fc.weight": torch.ones(10, 128), "fc.bias": torch.ones(10)},
    "bare": lambda s: s,
    "ddp": lambda s: {"model": prefixed(s, "module."), "epoch": 3},
    "compiled": lambda s: prefixed(s, "_orig_mod."),
    "moco": lambda s: {
        "epoch": 200,
        "arch": "resnet50",
        "state_dict": {
            **prefixed(s, "module.encoder_q."),
            "module.encoder_q.fc.0.weight": torch.ones(8, 8),
            **prefixed({name: value * 0 for name, value in s.items()}, "module.encoder_k."),
            "module.queue": torch.ones(2, 2),
        },
        "optimizer": {
            "state": {0: {"momentum_buffer": torch.ones(2)}},
            "param_groups": [{"lr": 0.03}],
        },
    },
    "simsiam": lambda s: {
        "state_dict": {**prefixed(s, "module.encoder."), "module.predictor.0.weight": torch.ones(2)}
    },
    "lightning": lambda s: {
        "pytorch-lightning_version": "2.5",
        "hyper_parameters": {"lr": 0.1},
        "state_dict": {
            **prefixed(s, "backbone."),
            **prefixed({name: value * 0 for name, value in s.items()}, "momentum_backbone."),
            "classifier.weight": torch.ones(2, 2),
            "projector.0.weight": torch.ones(2, 2),
        },
    },
    "vissl": lambda s: {
        "classy_state_dict": {"base_model": {"model": {"trunk": prefixed(s, "_feature_blocks.")}}}
    },
    "average": lambda s: {
        "state_dict": s,
        "state_dict_ema": {name: value * 0 for name, value in s.items()},
    },
    "teacher alone": lambda s: {"teacher": prefixed(s, "backbone.")},
    "half precision": lambda s: {
        name: v.half() if v.is_floating_point() else v for name, v in s.items()
    },
    "before 2019": lambda s: {
        name: value for name, value in s.items() if "num_batches" not in name
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("suffix", [".pth", ".pt", ".tar", ".safetensors"])
def test_the_network_is_found_wherever_a_file_has_it(tmp_path, layout, suffix):
    theirs, ours = slim(), slim()
    state = LAYOUTS[layout]({name: value.clone() for name, value in theirs.state_dict().items()})
    path = tmp_path / f"w{suffix}"
    if suffix == ".safetensors":
        save_file(weights._flat(state), path)
    else:
        torch.save(state, path)
    weights.start(ours, SLIM, str(path))
    if layout == "half precision":
        assert all(
            torch.equal(v, theirs.state_dict()[k].half().to(v))
            for k, v in ours.state_dict().items()
        )
    else:
        assert equal(ours.state_dict(), theirs.state_dict())


def test_a_run_folder_is_a_start(tmp_path):
    theirs, ours = slim(), slim()
    weights.write(theirs, tmp_path / "backbone.safetensors")
    weights.start(ours, SLIM, str(tmp_path))
    assert equal(ours.state_dict(), theirs.state_dict())


def test_a_checkpoint_of_ours_starts_with_the_online_network(tmp_path):
    learner, ours = build("mocov2", SLIM, stem="small"), slim()
    with torch.no_grad():
        torch._foreach_add_(list(learner.online.parameters()), 1)
    torch.save({"learner": learner.state_dict(), "step": 3}, tmp_path / "last.pt")
    weights.start(ours, SLIM, str(tmp_path / "last.pt"))
    assert equal(ours.state_dict(), learner.backbone.state_dict())
    assert not equal(ours.state_dict(), learner.twin.net.backbone.state_dict())


def test_a_started_backbone_starts_its_twin_too(tmp_path):
    theirs, ours = slim(), slim()
    weights.write(theirs, tmp_path / "b.safetensors")
    weights.start(ours, SLIM, str(tmp_path / "b.safetensors"))
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
        lambda s: s | {"projector.0.weight": torch.ones(2)},
        "holds 1 tensors .* the first: projector.0.weight",
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
    "two": (lambda s: {"a": s, "b": s}, "2 such backbones, under a. and b."),
    "list": (lambda s: list(s.values()), "holds a list, not a state dict"),
    "empty": (lambda s: {}, "no such backbone"),
    "code": (
        lambda s: s | {"args": argparse.Namespace(lr=1)},
        "not trusted: save its state_dict alone",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_a_sentence_and_changes_nothing(tmp_path, case):
    change, sentence = REFUSED[case]
    net = slim()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.save(change(slim().state_dict()), tmp_path / "w.pth")
    with pytest.raises(ValueError, match=sentence) as error:
        weights.start(net, SLIM, str(tmp_path / "w.pth"))
    assert "\n" not in str(error.value) and equal(before, net.state_dict())


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
