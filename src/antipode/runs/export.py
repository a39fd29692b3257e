"""A backbone under the key names of other software, in its own kind of file. What does not load back is not written."""

import difflib
import io
import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import Bottleneck

from antipode.nets.weights import Normal, header, tensors
from antipode.files import atomic_write
from antipode.nets.backbone import RESNETS, STEMS, Shape, Wrapped

State = dict[str, Tensor]
NORM = ("weight", "bias", "running_mean", "running_var")


class StemDiffers(UserWarning):
    """The software's own network must get another first layer before it takes the weights."""


class Trained(NamedTuple):
    """A backbone and how it was made."""

    net: nn.Module  # in eval mode, on the CPU
    name: str
    stem: str
    size: int  # of the images it was trained on, in pixels
    state: State
    normal: Normal | None = None  # of their pixels

    @property
    def channels(self) -> int:
        """Of the images, as the first convolution has them."""
        first = next((layer for layer in self.net.modules() if isinstance(layer, nn.Conv2d)), None)
        return first.in_channels if first else 3 if self.normal is None else len(self.normal.mean)

    def image(self, count: int = 1, wider: int = 0) -> Tensor:
        """Noise (count,C,size,size+wider), the same every time."""
        generator = torch.Generator().manual_seed(0)
        return torch.randn(count, self.channels, self.size, self.size + wider, generator=generator)


class Format(NamedTuple):
    """How a kind of file is made, and what its name ends in."""

    make: Callable[[Trained, str], bytes]  # of the suffix; checked by loading it back
    suffixes: tuple[str, ...]


def export(
    net: nn.Module,
    path: Path,
    *,
    format: str,
    name: str,
    stem: str | None = None,
    size: int = 224,
    normal: Normal | None = None,
) -> Path:
    """Write a backbone for other software. `name` and `stem` say what it is, `size` the images it is tried on."""
    if format not in FORMATS:
        near = difflib.get_close_matches(format.lower(), FORMATS, 1, 0.4)
        raise ValueError(f"there is no format {format!r}{f', did you mean {near[0]!r}?' if near else ''}{_known()}")
    suffixes = FORMATS[format].suffixes
    others = {suffix for form in FORMATS.values() for suffix in form.suffixes} - set(suffixes)
    # Detectron2 tells its files by their endings; elsewhere one that is no other software's may be anything
    if path.is_dir() or path.suffix in others or (format == "detectron2" and path.suffix not in suffixes):
        raise ValueError(f"a file for {format} is named *{' or *'.join(suffixes)}, not {path.name!r}")
    net, kind = net.cpu().eval(), path.suffix if path.suffix in suffixes else suffixes[0]
    content = FORMATS[format].make(Trained(net, name, stem or "imagenet", size, tensors(net), normal), kind)
    with atomic_write(path) as file:
        file.write(content)
    return path


def _known() -> str:
    return f" (known are {', '.join(FORMATS)})"


def torchvision(trained: Trained, suffix: str) -> bytes:
    """A state dict that torchvision's network of that name takes, all but its fc."""
    return _for_torchvision(trained, suffix, "torchvision")


def _for_torchvision(trained: Trained, suffix: str, software: str) -> bytes:
    if trained.name not in RESNETS or trained.name not in models.list_models():
        raise ValueError(f"{software} has no {trained.name}: export it as safetensors or onnx")
    content, theirs = _packed(trained.state, suffix), models.get_model(trained.name, weights=None)
    _fit_stem(theirs, trained, software)
    result = theirs.load_state_dict(_unpacked(content, suffix), strict=False)
    if result.unexpected_keys or result.missing_keys != ["fc.weight", "fc.bias"]:
        raise RuntimeError(f"torchvision's {trained.name} does not take the weights back: {result}")
    theirs.fc = nn.Identity()
    _same(theirs.eval(), trained, software)
    return content


def timm(trained: Trained, suffix: str) -> bytes:
    """A state dict for timm.create_model(NAME, num_classes=0), by names alone where timm is not installed."""
    try:
        library = import_module("timm")
    except ImportError:
        return _for_torchvision(trained, suffix, "timm")  # its ResNets have torchvision's names
    own = trained.name.removeprefix("timm:")
    if not library.is_model(own):
        raise ValueError(f"timm has no {trained.name}: export it as safetensors or onnx")
    content = _packed(trained.state, suffix)
    theirs = library.create_model(own, num_classes=0, in_chans=trained.channels)
    if own == trained.name:
        _fit_stem(theirs, trained, "timm")
    theirs.load_state_dict(_unpacked(content, suffix))
    _same(Wrapped(theirs, trained.channels).eval(), trained, "timm")
    return content


def _fit_stem(theirs: Any, trained: Trained, software: str) -> None:
    """Give their ResNet the first layers that ours has, and say how where they are not ImageNet's."""
    kernel, stride, padding, pool = STEMS[trained.stem]
    if trained.stem == "imagenet" and theirs.conv1.in_channels == trained.channels:
        return
    theirs.conv1 = nn.Conv2d(trained.channels, theirs.conv1.out_channels, kernel, stride, padding, bias=False)
    steps = f"net.conv1 = torch.nn.Conv2d({trained.channels}, 64, {kernel}, {stride}, {padding}, bias=False)"
    if not pool:
        theirs.maxpool = nn.Identity()
        steps += " and net.maxpool = torch.nn.Identity()"
    text = f"{software}'s {trained.name} has another stem: before loading the weights, set {steps}"
    warnings.warn(text, StemDiffers, stacklevel=5)


@torch.no_grad()
def _same(theirs: nn.Module, trained: Trained, software: str) -> None:
    """Their network and ours see the same in an image."""
    image = trained.image()
    if not torch.allclose(theirs(image), trained.net(image), rtol=1e-4, atol=1e-5):
        raise RuntimeError(f"{software}'s {trained.name} loads the weights but gives other features")


def detectron2(trained: Trained, suffix: str) -> bytes:
    """A pickle of arrays as MoCo's conversion for Detectron2 makes it; its stem is ImageNet's only."""
    if trained.name not in RESNETS:
        raise ValueError(f"detectron2 has ResNets only, no {trained.name}: export it as safetensors or onnx")
    if trained.stem != "imagenet":
        kernel, stride, _, _ = STEMS[trained.stem]
        raise ValueError(
            f"the stem differs: detectron2's is 7x7 with stride 2 and a max pool, the backbone's ({trained.stem}) is "
            f"{kernel}x{kernel} with stride {stride} and none; export it as safetensors or onnx"
        )
    arrays = {caffe_name(name): value.numpy() for name, value in trained.state.items()}
    content = pickle.dumps({"model": arrays, "__author__": "antipode", "matching_heuristics": True}, protocol=4)
    found = {name: array.shape for name, array in pickle.loads(content)["model"].items()}
    if found != dict(layout(RESNETS[trained.name], trained.channels)):
        raise RuntimeError(f"the names or shapes of {trained.name} are not detectron2's")
    return content


def caffe_name(name: str) -> str:
    """Detectron2's name for a tensor of torchvision's: layer1.0.bn2.bias is res2.0.conv2.norm.bias."""
    *place, part, leaf = name.split(".")
    if place[-1:] == ["downsample"]:
        place, part = place[:-1], "shortcut" if part == "0" else "shortcut.norm"
    part = f"conv{part[2:]}.norm" if part.startswith("bn") else part
    stage = f"res{int(place[0][5:]) + 1}.{place[1]}" if place else "stem"
    return f"{stage}.{part}.{leaf}"


def layout(shape: Shape, channels: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of Detectron2's ResNet, from its building rules: what the exported file is held against."""
    width, deep = shape.width, issubclass(shape.block, Bottleneck)
    yield from _convolution("stem.conv1", width, channels, 7)
    inner = width
    for stage, blocks in enumerate(shape.layers):
        outer = (width << stage) * (4 if deep else 1)
        middle = int((width << stage) * shape.per_group / 64) * shape.groups if deep else outer
        for block in range(blocks):
            home = f"res{stage + 2}.{block}"
            if block == 0 and (stage > 0 or inner != outer):
                yield from _convolution(f"{home}.shortcut", outer, inner, 1)
            yield from _convolution(f"{home}.conv1", middle, inner, 1 if deep else 3)
            yield from _convolution(f"{home}.conv2", middle, middle // shape.groups, 3)
            if deep:
                yield from _convolution(f"{home}.conv3", outer, middle, 1)
            inner = outer


def _convolution(name: str, out: int, inner: int, kernel: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (out, inner, kernel, kernel)
    yield from ((f"{name}.norm.{leaf}", (out,)) for leaf in NORM)
    yield f"{name}.norm.num_batches_tracked", ()


def onnx(trained: Trained, suffix: str) -> bytes:
    """A graph from images (N,C,H,W), normalised, to features (N,width), for any N.

    A ResNet takes any H and W, another network the size it was trained on.
    """
    try:
        runtime = [import_module(name) for name in ("onnx", "onnxscript", "onnxruntime")][-1]
    except ImportError:
        raise ValueError("ONNX is an extra of its own: pip install 'antipode[onnx]'") from None
    any_size = trained.name in RESNETS
    free = {axis: torch.export.Dim(letter) for axis, letter in ((0, "N"), (2, "H"), (3, "W")) if any_size or axis == 0}
    try:
        program = torch.onnx.export(
            trained.net,
            (trained.image(2),),
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=(free,),
            dynamo=True,
            verbose=False,
        )
    except Exception as error:  # whatever the exporter meets in a network of one's own
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ValueError(f"torch.onnx cannot export {trained.name}: {reason[:300]}") from error
    if program is None:
        raise RuntimeError("torch.onnx gave no program")
    content: bytes = program.model_proto.SerializeToString()
    session, images = runtime.InferenceSession(content), trained.image(3, 9 if any_size else 0)
    features = torch.from_numpy(session.run(["features"], {"images": images.numpy()})[0])
    with torch.no_grad():
        if not torch.allclose(features, trained.net(images), rtol=1e-3, atol=1e-4):
            raise RuntimeError("the ONNX graph gives other features than the network")
    return content


def safetensors(trained: Trained, suffix: str) -> bytes:
    """The tensors under torchvision's names (timm's for its networks); what they are is in the header."""
    about = {"format": "pt", "backbone": trained.name, "stem": trained.stem, "size": json.dumps(trained.size)}
    about |= header(trained.normal) if trained.normal else {}
    content = save(trained.state, metadata=about)
    again = load(content)
    if again.keys() != trained.state.keys() or any(not torch.equal(again[k], v) for k, v in trained.state.items()):
        raise RuntimeError("the safetensors file does not give the weights back")
    return content


def _packed(state: State, suffix: str) -> bytes:
    if suffix == ".safetensors":
        return save(state, metadata={"format": "pt"})
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _unpacked(content: bytes, suffix: str) -> State:
    if suffix == ".safetensors":
        return load(content)
    state: State = torch.load(io.BytesIO(content), weights_only=True)
    return state


FORMATS = {
    "torchvision": Format(torchvision, (".pth", ".pt")),
    "timm": Format(timm, (".pth", ".pt", ".safetensors")),
    "detectron2": Format(detectron2, (".pkl",)),
    "onnx": Format(onnx, (".onnx",)),
    "safetensors": Format(safetensors, (".safetensors",)),
}
