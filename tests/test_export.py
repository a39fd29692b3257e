"""Tests of exports: the exact online backbone under the names of other software, and features."""

import json
import pickle
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset

import antipode
from antipode import api
from antipode.data.sources.catalog import SETS, load
from antipode.data.sources.source import Decoded, grey_to_rgb
from antipode.nets import weight_file, weights
from antipode.nets.backbone import RESNETS, backbone
from antipode.nets.weight_file import About, Normal
from antipode.papers import build
from antipode.recipe.resolve import resolve
from antipode.runs.detectron2 import caffe_name, layout
from antipode.runs.export import FORMATS, StemDiffers, export
from antipode.runs.folder import RunFolder
from tests.toys import fewer

SUFFIX = {name: form.suffixes[0] for name, form in FORMATS.items()}


def lively(net):
    """Return the net with batch-norm statistics that differ from the initial ones."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return net.eval()


def run_of(path, net, name, stem="imagenet"):
    """Return a finished run with this backbone."""
    path.mkdir()
    overrides = {"backbone.name": name, "backbone.stem": stem, "views.size": 32}
    resolve("shapes.dcl", overrides=overrides).write(path / "recipe.json")
    weights.write(net, path / "backbone.safetensors")
    return api.Run(path)


@pytest.fixture(scope="module")
def resnet18(tmp_path_factory):
    torch.manual_seed(0)
    net = lively(backbone("resnet18"))
    return net, run_of(tmp_path_factory.mktemp("resnet18") / "run", net, "resnet18")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_torchvision_takes_all_but_its_classifier_and_sees_the_same(resnet18, tmp_path):
    net, run = resnet18
    file = api.export(run, format="torchvision", out=tmp_path / "b.pth")
    theirs, image = torchvision.models.resnet18(), torch.randn(2, 3, 64, 64)
    result = theirs.load_state_dict(torch.load(file, weights_only=True), strict=False)
    assert result.missing_keys == ["fc.weight", "fc.bias"] and not result.unexpected_keys
    theirs.fc = nn.Identity()
    assert torch.equal(theirs.eval()(image), net(image))


@pytest.mark.parametrize(
    ("format", "suffix"),
    [
        ("torchvision", ".pth"),
        pytest.param("timm", ".pt", marks=pytest.mark.slow),
        ("safetensors", ".safetensors"),
    ],
)
def test_an_exported_file_starts_the_same_network(resnet18, tmp_path, format, suffix):
    net, run = resnet18
    file, again = api.export(run, format, tmp_path / f"b{suffix}"), backbone("resnet18")
    weights.start(again, "resnet18", str(file))  # 7x7: no other stem has it
    assert equal(again.state_dict(), net.state_dict())


@pytest.mark.parametrize("suffix", FORMATS["timm"].suffixes)
def test_timm_takes_the_file_as_its_checkpoint_and_sees_the_same(resnet18, tmp_path, suffix):
    timm = pytest.importorskip("timm")
    net, run = resnet18
    file = api.export(run, "timm", tmp_path / f"b{suffix}")
    theirs = timm.create_model("resnet18", num_classes=0, checkpoint_path=str(file))
    image = torch.randn(2, 3, 64, 64)
    assert torch.equal(theirs.eval()(image), net(image))


def test_timms_names_are_torchvisions_where_timm_is_not_installed(resnet18, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    net, run = resnet18
    file = api.export(run, "timm", tmp_path / "b.safetensors")
    assert equal(load_file(file), net.state_dict())


def test_detectron2_gets_mocos_dict_of_arrays_to_the_bit(resnet18, tmp_path):
    net, run = resnet18
    content = pickle.loads(api.export(run, "detectron2", tmp_path / "b.pkl").read_bytes())
    assert content["matching_heuristics"] is True and content["__author__"]
    assert all(isinstance(array, np.ndarray) for array in content["model"].values())
    assert equal(
        {name: torch.from_numpy(np.asarray(array)) for name, array in content["model"].items()},
        {caffe_name(name): value for name, value in net.state_dict().items()},
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    {
        "conv1.weight": "stem.conv1.weight",
        "bn1.running_mean": "stem.conv1.norm.running_mean",
        "layer1.0.conv1.weight": "res2.0.conv1.weight",
        "layer2.3.bn2.bias": "res3.3.conv2.norm.bias",
        "layer4.0.bn3.weight": "res5.0.conv3.norm.weight",
        "layer1.0.downsample.0.weight": "res2.0.shortcut.weight",
        "layer3.0.downsample.1.running_var": "res4.0.shortcut.norm.running_var",
        "layer3.22.conv3.weight": "res4.22.conv3.weight",
    }.items(),
)
def test_detectron2s_names(ours, theirs):
    assert caffe_name(ours) == theirs


@pytest.mark.parametrize("name", RESNETS)
def test_every_resnet_has_detectron2s_layout(name):
    with torch.device("meta"):
        state = backbone(name).state_dict()
    renamed = {caffe_name(key): tuple(value.shape) for key, value in state.items()}
    assert len(renamed) == len(state) and renamed == dict(layout(RESNETS[name], 3))


def test_safetensors_says_what_it_holds(resnet18, tmp_path):
    net, run = resnet18
    file = api.export(run, "safetensors", tmp_path / "b.safetensors")
    with safe_open(file, "pt") as content:
        stated = content.metadata()
    assert len(stated.pop("antipode.digest")) == 64
    assert stated == {
        "format": "pt",
        "antipode": "1",
        "backbone": "resnet18",
        "stem": "imagenet",
        "channels": "3",
        "size": "32",
        "policy": "shapes",
    }
    assert equal(load_file(file), net.state_dict())


@pytest.mark.parametrize("format", ["safetensors", "timm"])
def test_a_safetensors_file_carries_what_the_runs_own_does(tmp_path, format):
    about = About("resnet18", "small", 3, 32, "simclr", Normal((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))
    net = backbone("resnet18", stem="small")
    options = {"stem": "small", "size": 32, "normal": about.normal, "policy": "simclr"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StemDiffers)
        file = export(net, tmp_path / "b.safetensors", format=format, name="resnet18", **options)
    weights.write(net, tmp_path / "backbone.safetensors", about)
    assert weight_file.about(file) == weight_file.about(tmp_path) == about
    assert file.read_bytes() == (tmp_path / "backbone.safetensors").read_bytes()


@pytest.mark.parametrize("format", FORMATS)
def test_a_network_that_is_not_finite_does_not_replace_an_export(tmp_path, format):
    net = backbone("resnet18")
    file = tmp_path / f"b{SUFFIX[format]}"
    file.write_bytes(b"the finite one")
    with torch.no_grad():
        net.layer3[1].bn2.running_var[7] = torch.inf
    with pytest.raises(
        ValueError, match=r"b\..* is not written: 1 of the 120 .* NaN .*: layer3.1.bn2.running_var"
    ):
        export(net, file, format=format, name="resnet18", size=32)
    assert file.read_bytes() == b"the finite one" and list(tmp_path.iterdir()) == [file]


def test_a_network_of_a_file_is_exported_as_a_run_is(resnet18, tmp_path):
    net, run = resnet18
    first = api.export(run, "safetensors", tmp_path / "a.safetensors")
    second = api.export(f"file:{first}@resnet18", "safetensors", tmp_path / "b.safetensors")
    assert first.read_bytes() == second.read_bytes()
    file = api.export(f"file:{first}@resnet18", "torchvision", tmp_path / "c.pth")
    assert equal(torch.load(file, weights_only=True), net.state_dict())


def test_onnx_sees_the_same_in_images_of_any_number_and_size(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    net = lively(backbone("resnet10-slim", stem="small"))
    file = api.export(
        run_of(tmp_path / "run", net, "resnet10-slim", "small"), "onnx", tmp_path / "b.onnx"
    )
    session = runtime.InferenceSession(str(file))
    for shape in ((1, 3, 32, 32), (5, 3, 48, 40)):
        images = torch.randn(shape)
        (features,) = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(
            torch.from_numpy(features), net(images).detach(), rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_onnx_without_its_extra_is_a_sentence_with_the_command(tmp_path, monkeypatch, missing):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None if name == missing else sys)
    with pytest.raises(ValueError, match=r"pip install 'antipode\[onnx\]'"):
        export(backbone("resnet10-slim"), tmp_path / "b.onnx", format="onnx", name="resnet10-slim")


def test_the_online_backbone_leaves_and_never_the_twin(tmp_path):
    learner = build("mocov2", "resnet10-slim", stem="imagenet")
    with torch.no_grad():
        torch._foreach_add_(list(learner.online.parameters()), 0.01)
    run = run_of(tmp_path / "run", learner.backbone, "resnet10-slim")
    exported = load_file(api.export(run, "safetensors", tmp_path / "b.safetensors"))
    assert equal(exported, learner.backbone.state_dict())
    assert not equal(exported, learner.twin.net.backbone.state_dict())


@pytest.mark.parametrize("format", ["torchvision", pytest.param("timm", marks=pytest.mark.slow)])
def test_a_small_stem_is_stated_with_what_to_do_and_then_fits(tmp_path, format):
    net = lively(backbone("resnet18", stem="small"))
    run = run_of(tmp_path / "run", net, "resnet18", "small")
    with pytest.warns(StemDiffers, match="has another stem") as caught:
        file = api.export(run, format, tmp_path / "b.pth")
    theirs, image = torchvision.models.resnet18(), torch.randn(1, 3, 32, 32)
    for line in str(caught[0].message).split(", set ")[1].split(" and "):
        exec(line, {"net": theirs, "torch": torch})
    theirs.load_state_dict(torch.load(file, weights_only=True), strict=False)
    theirs.fc = nn.Identity()
    assert torch.equal(theirs.eval()(image), net(image))


def test_grey_images_are_stated_as_well(tmp_path):
    net = lively(backbone("resnet18", channels=1))
    with pytest.warns(StemDiffers, match=r"Conv2d\(1, 64, 7, 2, 3, bias=False\)$"):
        export(net, tmp_path / "b.pth", format="torchvision", name="resnet18", size=32)


REFUSED = [
    ("torchvison", "resnet18", "imagenet", "b.pth", "did you mean 'torchvision'"),
    ("ONNX", "resnet18", "imagenet", "b.onnx", "did you mean 'onnx'"),
    (
        "caffe",
        "resnet18",
        "imagenet",
        "b.pkl",
        "choose from torchvision, timm, detectron2, onnx, safetensors",
    ),
    (
        "torchvision",
        "resnet18",
        "imagenet",
        "b.safetensors",
        r"named \*.pth or \*.pt, not 'b.safetensors'",
    ),
    ("detectron2", "resnet18", "imagenet", "b", r"named \*.pkl, not 'b'"),
    ("detectron2", "resnet18", "small", "b.pkl", "stem differs: detectron2's is 7x7 with stride 2"),
    ("detectron2", "resnet18", "half", "b.pkl", "stem differs: .* 3x3 with stride 2"),
    ("detectron2", "timm:vit", "imagenet", "b.pkl", "detectron2 has ResNets only"),
    (
        "torchvision",
        "resnet10-slim",
        "imagenet",
        "b.pth",
        "torchvision has no resnet10-slim: export it as safetensors",
    ),
    ("timm", "resnet50x2", "imagenet", "b.pth", "timm has no resnet50x2: export it as safetensors"),
]


@pytest.mark.parametrize(("format", "name", "stem", "file", "sentence"), REFUSED)
def test_what_a_format_cannot_hold_is_refused_in_a_sentence_and_writes_nothing(
    tmp_path, format, name, stem, file, sentence
):
    with pytest.raises(ValueError, match=sentence) as caught:
        export(backbone("resnet10-slim"), tmp_path / file, format=format, name=name, stem=stem)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_name_without_a_known_ending_is_a_name(tmp_path):
    file = export(
        backbone("resnet18"), tmp_path / "b.tar", format="torchvision", name="resnet18", size=32
    )
    assert torch.load(file).keys() == backbone("resnet18").state_dict().keys()
    for format, name in (("detectron2", "b.bin"), ("torchvision", "b.pkl"), ("onnx", "b.pth")):
        with pytest.raises(ValueError, match=rf"a file for {format} is named"):
            export(backbone("resnet18"), tmp_path / name, format=format, name="resnet18", size=32)


def test_a_file_that_does_not_load_back_is_not_written(tmp_path):
    with pytest.raises(RuntimeError):
        export(
            backbone("resnet18"), tmp_path / "b.pth", format="torchvision", name="resnet34", size=32
        )
    with pytest.raises(RuntimeError, match="not detectron2's"):
        export(
            backbone("resnet18"), tmp_path / "b.pkl", format="detectron2", name="resnet34", size=32
        )
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_finished_run_is_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no finished run"):
        api.export(tmp_path, "torchvision", tmp_path / "b.pth")


def test_weights_that_are_not_the_recipes_network_are_a_sentence(tmp_path):
    run = run_of(tmp_path / "run", nn.Conv2d(3, 4, 3), "resnet10-slim")
    with pytest.raises(
        ValueError, match=r"lacks \d+ of the backbone's tensors, the first: conv1.weight"
    ):
        api.load_backbone(run)


class Noise(Dataset):
    """Images with labels, in memory."""

    def __init__(self, count, channels=3):
        self.images = torch.randint(
            0, 256, (count, channels, 32, 32), generator=torch.Generator().manual_seed(0)
        )

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index].to(torch.uint8), index % 3


@pytest.fixture(scope="module")
def slim(tmp_path_factory):
    torch.manual_seed(0)
    net = lively(backbone("resnet10-slim", stem="small"))
    return run_of(tmp_path_factory.mktemp("slim") / "run", net, "resnet10-slim", "small")


def photos(root, count=12):
    """Write image files into folders of two classes, and return the name of the data set."""
    from PIL import Image

    for index in range(count):
        folder = root / ("cat" if index % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(index).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return f"folder:{root}"


def test_embedded_features_come_back_to_the_bit(slim, tmp_path):
    features = antipode.embed(slim, Noise(10), out=tmp_path / "f.npz")
    with np.load(tmp_path / "f.npz", allow_pickle=False) as content:
        assert set(content) == {"x", "y", "split"}
        assert np.array_equal(content["x"], features.x.numpy()) and np.array_equal(
            content["y"], features.y.numpy()
        )
        assert content["x"].shape == (10, 128) and list(content["split"]) == ["train"] * 10


def test_a_file_changes_nothing_of_what_is_returned(slim, tmp_path):
    with_file = antipode.embed(slim, Noise(5), out=tmp_path / "f.npz")
    without = antipode.embed(slim, Noise(5))
    assert torch.equal(with_file.x, without.x) and torch.equal(with_file.y, without.y)


def test_images_with_names_are_written_with_them(slim, tmp_path):
    data = photos(tmp_path / "photos")
    features = antipode.embed(slim, data, out=tmp_path / "f.npz")
    with np.load(tmp_path / "f.npz", allow_pickle=False) as content:
        rows = list(zip(content["names"], content["y"], strict=True))
        assert sorted(name for name, _ in rows) == sorted(
            str(path.relative_to(tmp_path / "photos"))
            for path in (tmp_path / "photos").rglob("*.png")
        )
        assert all(label == ("dog" in name) for name, label in rows)
        assert (
            set(content["split"]) == {"train", "test"}
            and len(content["x"]) == len(features.x) == 12
        )


def test_images_that_cannot_be_read_are_left_out(slim, tmp_path):
    """The others keep their features, labels and names."""
    data = photos(tmp_path / "photos")
    whole = antipode.embed(slim, data, out=tmp_path / "whole.npz")
    broken = next((tmp_path / "photos").rglob("*.png"))
    broken.write_bytes(broken.read_bytes()[:-40])
    with pytest.warns(UserWarning, match="is left out"):
        rest = antipode.embed(slim, data, out=tmp_path / "rest.npz")
    assert rest.left_out == 1 and whole.left_out == 0
    with np.load(tmp_path / "whole.npz") as before, np.load(tmp_path / "rest.npz") as after:
        name = str(broken.relative_to(tmp_path / "photos"))
        kept = before["names"] != name
        assert kept.sum() == len(whole.x) - 1 == len(rest.x)
        for key in ("x", "y", "names", "split"):
            assert np.array_equal(before[key][kept], after[key])


def test_parquet_without_pyarrow_is_a_sentence_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install 'antipode\[data\]'"):
        antipode.embed(tmp_path / "no run", Noise(3), out=tmp_path / "f.parquet")


@pytest.mark.parametrize("name", ["f.csv", "f", "folder.npz"])
def test_features_go_into_two_kinds_of_files(tmp_path, name):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(ValueError, match=r"features are written to \*.npz or \*.parquet files"):
        antipode.embed(tmp_path / "no run", Noise(3), out=tmp_path / name)


def test_images_of_other_channels_are_a_sentence(slim):
    with pytest.raises(ValueError, match=r"takes images of 3 channels, but .* has 5 channels"):
        antipode.embed(slim, Noise(3, channels=5))


def test_grey_images_are_seen_as_colour_by_a_network_that_takes_three_channels(
    slim, tmp_path, monkeypatch
):
    """This holds for images in memory and for images that are decoded from files."""
    monkeypatch.setitem(SETS, "digits", fewer("digits", 360, 120))
    grey = load("digits")
    features = antipode.embed(slim, "digits").x
    (images,) = slim.eval_view(grey)(grey.train.images[:4].repeat(1, 3, 1, 1))
    with torch.no_grad():
        expected = api.load_backbone(slim)(images)
    assert torch.allclose(features[:4], expected, atol=1e-5)
    shutil.copytree(slim.path, tmp_path / "run")
    assert api.evaluate(tmp_path / "run", ["knn20"], data="digits")["knn20"].value > 50
    read = Decoded(lambda index: grey.train.images[index], ["a", "b"], channels=1, size=8)
    images, _ = grey_to_rgb(read).take(torch.tensor([0, 1]))
    assert images.shape == (2, 3, 8, 8) and bool((images == images[:, :1]).all())


def test_overwriting_a_run_makes_new_logs(slim, tmp_path):
    run = run_of(
        tmp_path / "run", backbone("resnet10-slim", stem="small"), "resnet10-slim", "small"
    )
    (run.path / "tensorboard").mkdir()
    (run.path / "wandb.json").write_text(json.dumps({"id": "old"}))
    RunFolder(run.path).clear()
    assert not (run.path / "tensorboard").exists() and not (run.path / "wandb.json").exists()
