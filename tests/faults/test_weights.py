"""Weights are what was trained: damage is noticed, a stem is never guessed, common layouts load.

Only the public functions and the command line are used.
"""

import importlib.util
import json
import re
import struct
import warnings
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import TensorDataset

import antipode
from antipode import cli

SLIM = "resnet10-slim"  # for digits it has the stem `small`: 3x3 with stride 1


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of digits. It must not be modified."""
    out = tmp_path_factory.mktemp("trained") / "run"
    return antipode.pretrain(
        "digits.simclr", epochs=1, batch=700, out=out, device="cpu", quiet=True
    )


def coloured_images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (48, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return TensorDataset(pixels, torch.arange(48) % 3)


@pytest.fixture(scope="module")
def coloured(tmp_path_factory):
    """A finished run on colour images, with the stem `small`. It must not be modified."""
    return antipode.pretrain(
        method="simclr",
        data=coloured_images(),
        backbone=SLIM,
        epochs=1,
        batch=16,
        out=tmp_path_factory.mktemp("coloured") / "run",
        device="cpu",
        quiet=True,
        overrides={"backbone.stem": "small", "views.size": 16, "views.scale": [0.5, 1.0]},
    )


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run whose weights may be damaged."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("recipe.json", "env.json", "metrics.jsonl", "backbone.safetensors"):
        (folder / name).write_bytes((trained.path / name).read_bytes())
    return antipode.Run(folder)


def lively(net):
    """Return the net with batch-norm statistics that differ from the initial ones."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return net.eval()


def flip_exponents(file, count):
    """Flip one bit of the exponent of some floats, which stay finite."""
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    place = start + json.loads(content[8:start])["layer1.0.conv1.weight"]["data_offsets"][0]
    for index in range(count):
        content[place + 4 * index + 3] ^= 0b1000  # a factor of 2^16
    file.write_bytes(content)


# Damage (finding 8)


@pytest.mark.parametrize("count", [1, 20])
def test_flipped_bits_in_the_weights_of_a_run_are_reported(run, count):
    file = run.path / "backbone.safetensors"
    flip_exponents(file, count)
    assert all(bool(value.isfinite().all()) for value in load_file(file).values())
    sentence = r"backbone\.safetensors is damaged"
    with pytest.raises(ValueError, match=sentence):
        antipode.evaluate(run.path, ["knn20"])
    with pytest.raises(ValueError, match=sentence):
        antipode.load_backbone(run.path)
    with pytest.raises(ValueError, match=sentence):
        antipode.load_backbone(f"file:{run.path}@{SLIM}")
    with pytest.raises(ValueError, match=sentence):
        antipode.export(run.path, "safetensors", run.path / "out.safetensors")
    with pytest.raises(ValueError, match=sentence):
        antipode.embed(run.path, "digits")
    with pytest.raises(ValueError, match=sentence):
        antipode.pretrain(
            "digits.simclr",
            epochs=1,
            out=run.path.parent / "next",
            device="cpu",
            quiet=True,
            overrides={"backbone.weights": str(file)},
        )


def test_a_damaged_file_is_one_sentence_and_status_2(run, capsys, monkeypatch):
    flip_exponents(run.path / "backbone.safetensors", 20)
    monkeypatch.setattr("sys.argv", ["antipode", "evaluate", str(run.path), "--protocol", "knn20"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capsys.readouterr()
    assert end.value.code == 2 and printed.err.count("\n") == 1
    assert "backbone.safetensors is damaged" in printed.err


def test_a_changed_normalisation_of_the_pixels_is_reported(run):
    """It would change what the network sees as much as changed weights do."""
    file = run.path / "backbone.safetensors"
    content = file.read_bytes()
    at = content.index(b"mean")
    digit = next(i for i in range(at, at + 40) if 49 <= content[i] <= 56)
    file.write_bytes(content[:digit] + bytes([content[digit] + 1]) + content[digit + 1 :])
    with pytest.raises(ValueError, match=r"backbone\.safetensors is damaged"):
        antipode.evaluate(run.path, ["knn20"])


def test_weights_of_another_run_are_reported(run):
    """The files of two runs were exchanged, or a recipe was edited after training."""
    recipe = json.loads((run.path / "recipe.json").read_text())
    recipe["backbone"]["stem"] = "half"  # the shapes of all tensors stay the same
    (run.path / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(ValueError, match=r"backbone.stem is 'small' in its header and 'half'"):
        antipode.load_backbone(run.path)


def test_a_flipped_bit_in_an_export_is_reported(coloured, tmp_path):
    file = antipode.export(coloured, "safetensors", tmp_path / "out.safetensors")
    flip_exponents(file, 1)
    with pytest.raises(ValueError, match=r"out\.safetensors is damaged"):
        antipode.load_backbone(f"file:{file}@{SLIM}")


TAILS = {
    "empty": lambda content: b"",
    "half of it": lambda content: content[: len(content) // 2],
    "a header without an end": lambda content: content[:100],
    "a huge header": lambda content: struct.pack("<Q", 2**60) + content[8:],
    "an unknown type": lambda content: content.replace(b'"F32"', b'"F99"', 1),
    "no header": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("kind", TAILS)
def test_a_damaged_file_is_a_sentence_wherever_it_is_read(run, kind):
    """Scores, features and exports read it in different ways."""
    file = run.path / "backbone.safetensors"
    file.write_bytes(TAILS[kind](file.read_bytes()))
    calls = [
        lambda: antipode.evaluate(run.path, ["knn20"]),
        lambda: antipode.embed(run.path, "digits"),
        lambda: antipode.export(run.path, "safetensors", run.path / "o.safetensors"),
        lambda: antipode.evaluate(f"file:{file}@{SLIM}", data="digits", out=run.path / "f"),
    ]
    for call in calls:
        with pytest.raises((ValueError, OSError), match=r"backbone\.safetensors") as error:
            call()
        assert "\n" not in str(error.value)


class Spoils(nn.Module):
    """A network that damages the file of weights when the weights are loaded into it."""

    file = None

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x)

    def load_state_dict(self, *arguments, **options):
        if Spoils.file is not None:
            Spoils.file.write_bytes(Spoils.file.read_bytes()[:100])
        return super().load_state_dict(*arguments, **options)


def test_a_file_that_is_damaged_while_it_is_used_is_a_sentence(tmp_path, monkeypatch):
    run = antipode.pretrain(
        method="simclr",
        data=coloured_images(),
        backbone=Spoils(),
        epochs=1,
        batch=16,
        out=tmp_path / "run",
        device="cpu",
        quiet=True,
        overrides={"views.size": 16, "views.scale": [0.5, 1.0]},
    )
    monkeypatch.setattr(Spoils, "file", tmp_path / "run" / "backbone.safetensors")
    with pytest.raises(ValueError, match=r"weights in .*backbone\.safetensors cannot be read"):
        antipode.embed(run, coloured_images())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory from /proc")
def test_files_that_are_damaged_at_random_are_a_sentence_under_a_limit_of_memory(capfd):
    """`python tests/faults/fuzz_weights.py` runs thousands of cases."""
    path = Path(__file__).with_name("fuzz_weights.py")
    spec = importlib.util.spec_from_file_location("fuzz_weights", path)
    fuzz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzz)
    for kind, count in (("safetensors", 140), ("torch", 60)):
        counts = fuzz.run(kind, count, seed=7)
        assert sum(counts.values()) == count
        assert not [text for text in counts if text.startswith("wrong")]
        assert counts["ValueError"] > count / 2 and counts["loaded"]
    assert "wrong" not in capfd.readouterr().err


# The stem (finding 17 of fidelity)


def test_an_export_comes_back_with_its_stem(coloured, tmp_path):
    file = antipode.export(coloured, "safetensors", tmp_path / "r.safetensors")
    image = torch.randn(2, 3, 16, 16)
    own = antipode.load_backbone(coloured)
    for path in (file, coloured.path, coloured.path / "backbone.safetensors"):
        net = antipode.load_backbone(f"file:{path}@{SLIM}")
        assert net.conv1.stride == (1, 1)
        with torch.no_grad():
            assert torch.equal(net(image), own(image))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A file with the ResNet-18 for CIFAR of another library, which states no stem."""
    net = lively(torchvision.models.resnet18())
    net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    net.maxpool = net.fc = nn.Identity()
    file = tmp_path_factory.mktemp("{theirs}") / "x.pth"
    torch.save(net.state_dict(), file)
    return net, file


def test_a_stem_that_nothing_states_is_asked_for(theirs):
    _, file = theirs
    with pytest.raises(
        ValueError,
        match=rf"x.pth does not say which stem .*file:{re.escape(str(file))}@resnet18:small",
    ):
        antipode.load_backbone(f"file:{file}@resnet18")
    with pytest.raises(ValueError, match="does not say which stem"):
        antipode.evaluate(f"file:{file}@resnet18", data="digits", out=file.parent / "scores")


def test_a_stem_that_is_named_is_used(theirs):
    net, file = theirs
    image = torch.randn(2, 3, 32, 32)
    ours = antipode.load_backbone(f"file:{file}@resnet18:small")
    with torch.no_grad():
        assert torch.equal(ours(image), net(image))
    assert antipode.load_backbone(f"file:{file}@resnet18:half").conv1.stride == (2, 2)
    with pytest.raises(ValueError, match=r"the stem differs: .* is 3x3, .* 'imagenet' is 7x7"):
        antipode.load_backbone(f"file:{file}@resnet18:imagenet")
    with pytest.raises(ValueError, match=r"there is no stem 'Small', did you mean 'small'\?"):
        antipode.load_backbone(f"file:{file}@resnet18:Small")


def start_from(file, out, **more):
    """Train one epoch on digits, starting from the weights in a file."""
    overrides = {"backbone.weights": str(file), **more}
    return antipode.pretrain(
        "digits.simclr", epochs=1, batch=700, out=out, device="cpu", quiet=True, overrides=overrides
    )


def test_weights_to_start_from_must_have_the_recipes_stem(trained, tmp_path):
    """The export has the stem `small`, and a net with `half` has tensors of the same shapes."""
    file = antipode.export(trained, "safetensors", tmp_path / "r.safetensors")
    with pytest.raises(ValueError, match="has the stem 'small', not 'half'"):
        start_from(file, tmp_path / "a", **{"backbone.stem": "half"})
    with pytest.raises(ValueError, match="has the stem 'small', not 'half'"):
        start_from(trained.path, tmp_path / "b", **{"backbone.stem": "half"})
    assert start_from(file, tmp_path / "c").finished


def test_a_stem_of_weights_to_start_from_is_asked_for(trained, tmp_path):
    """The stem of the data set says nothing about the file."""
    torch.save(load_file(trained.path / "backbone.safetensors"), tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"w.pth does not say .*set backbone.stem=small"):
        start_from(tmp_path / "w.pth", tmp_path / "a")
    assert start_from(tmp_path / "w.pth", tmp_path / "b", **{"backbone.stem": "small"}).finished


def test_documented_stems_need_no_name(tmp_path):
    net = lively(torchvision.models.resnet18())
    torch.save(net.state_dict(), tmp_path / "w.pth")
    net.fc = nn.Identity()
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        loaded = antipode.load_backbone(f"file:{tmp_path / 'w.pth'}@resnet18")
        assert torch.equal(loaded(image), net(image))


# Layouts of other projects (findings 18 to 20 of fidelity)


def put(state, prefix):
    return {f"{prefix}{name}": value for name, value in state.items()}


def sequential(net):
    """Return the tensors of a Sequential of a network's children, as lightly's examples have it."""
    return nn.Sequential(*list(net.children())[:-1]).state_dict()


OTHER = {"0.weight": torch.ones(4, 512), "0.bias": torch.ones(4)}
FILES = {
    "one network under two names": lambda net, twin: {
        **put(net.state_dict(), "backbone."),
        **put(net.state_dict(), "encoder.0."),
        **put(OTHER, "encoder.1.layer1."),
        **put(OTHER, "projector.layer1."),
    },
    "a learner with its network": lambda net, twin: {
        **put(net.state_dict(), "net."),
        **put(net.state_dict(), "online_encoder.net."),
        **put(twin.state_dict(), "target_encoder.net."),
    },
    "a sequential of children": lambda net, twin: {
        **put(sequential(net), "backbone."),
        **put(sequential(twin), "backbone_momentum."),
        **put(OTHER, "projection_head.layers."),
    },
    "projection head and prototypes": lambda net, twin: {
        **put(without_fc(net), "module."),
        **put(OTHER, "module.projection_head."),
        "module.prototypes.weight": torch.ones(30, 4),
    },
}


def without_fc(net):
    return {name: value for name, value in net.state_dict().items() if not name.startswith("fc")}


@pytest.mark.parametrize("layout", FILES)
def test_a_common_layout_loads_and_says_what_is_left_out(tmp_path, layout):
    net, twin = (lively(torchvision.models.resnet18()) for _ in range(2))
    state = {name: value.clone() for name, value in FILES[layout](net, twin).items()}
    file = tmp_path / "w.safetensors"
    save_file(state, file)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = antipode.load_backbone(f"file:{file}@resnet18")
    assert [str(one.message) for one in caught if "left out" in str(one.message)]
    net.fc = nn.Identity()
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(image), net(image))


def test_two_different_networks_are_not_picked_from(tmp_path):
    one, other = (torchvision.models.resnet18().state_dict() for _ in range(2))
    torch.save({**put(one, "left."), **put(other, "right.")}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="2 different networks"):
        antipode.load_backbone(f"file:{tmp_path / 'w.pth'}@resnet18")
