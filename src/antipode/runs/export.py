"""Export a backbone for other software, with its names of tensors and in its file format.

Every file is loaded back before it is written. What does not load back is not written.
"""

import io
import pickle
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load
from torch import Tensor, nn

from antipode.files import atomic_write
from antipode.names import check_name, printable
from antipode.nets import timm_net
from antipode.nets.backbone import RESNETS, STEMS, Stem, Wrapped
from antipode.nets.weight_file import About, Normal, check_finite, packed
from antipode.nets.weights import tensors
from antipode.runs.detectron2 import caffe_name, layout
from antipode.runs.images import channels_of
from antipode.runs.run import Run
from antipode.wording import option

State = dict[str, Tensor]


class StemDiffers(UserWarning):
    """The network of the other software needs another first layer before it accepts the weights."""


class NeedsArguments(UserWarning):
    """The network of timm must be created with the arguments that the message states."""


class Trained(NamedTuple):
    """A trained backbone and a description of it.

    Args:
        net: the backbone, in eval mode on the CPU.
        name: its name, such as "resnet50".
        stem: the name of its stem.
        size: the side in pixels of the images that it was trained on.
        state: its tensors by name.
        normal: the normalisation of its pixels, if known.
        policy: the view policy that it was trained with, if known.
    """

    net: nn.Module
    name: str
    stem: Stem
    size: int
    state: State
    normal: Normal | None = None
    policy: str | None = None

    @property
    def channels(self) -> int:
        """The number of channels of its images."""
        return channels_of(self.net, self.normal) or 3

    @property
    def about(self) -> About:
        """The description of the backbone that the header of a safetensors file holds."""
        stem = self.stem if self.name in RESNETS else None
        return About(self.name, stem, self.channels, self.size, self.policy, self.normal)

    def image(self, count: int = 1, wider: int = 0) -> Tensor:
        """Return fixed noise (count,C,size,size+wider) to compare two networks on."""
        generator = torch.Generator().manual_seed(0)
        return torch.randn(count, self.channels, self.size, self.size + wider, generator=generator)


class Format(NamedTuple):
    """A file format.

    Args:
        make: function from a backbone and a suffix to the content of the file, which it has loaded
            back.
        suffixes: the suffixes of its files.
    """

    make: Callable[[Trained, str], bytes]
    suffixes: tuple[str, ...]


def export_run(run: Run, format: str, out: Path, *, overwrite: bool = False) -> Path:
    """Write the online backbone of a run for other software, and return the file.

    A file that exists is replaced, with a warning unless `overwrite` is True.
    """
    existed = out.exists()
    file = export(
        run.backbone(),
        out,
        format=format,
        name=run.backbone_name,
        stem=run.stem,
        size=run.size,
        normal=run.normal,
        policy=run.policy,
    )
    if existed and not overwrite:
        intended = f"{option('overwrite', True)} says that this is intended"
        warnings.warn(printable(f"{out} existed and was replaced; {intended}"), stacklevel=3)
    return file


def export(
    net: nn.Module,
    path: Path,
    *,
    format: str,
    name: str,
    stem: Stem | None = None,
    size: int = 224,
    normal: Normal | None = None,
    policy: str | None = None,
) -> Path:
    """Write a backbone for other software, and return the file.

    A network with NaN or infinite weights raises ValueError, and a file of that name stays as it
    is.

    Args:
        net: the backbone.
        path: the file.
        format: a key of `FORMATS`.
        name: the name of the backbone, such as "resnet50".
        stem: the name of its stem, "imagenet" by default.
        size: the side in pixels of the images on which the two networks are compared.
        normal: the normalisation of its pixels, if known.
        policy: the view policy that it was trained with, if known.
    """
    check_name("format", format, FORMATS, 0.4)
    suffixes = FORMATS[format].suffixes
    others = {suffix for form in FORMATS.values() for suffix in form.suffixes} - set(suffixes)
    # Detectron2 recognises its files by their suffix. The others accept any suffix, except one that
    # belongs to another format.
    wrong = path.suffix in others or (format == "detectron2" and path.suffix not in suffixes)
    if wrong or path.is_dir():
        raise ValueError(
            f"a file for {format} is named *{' or *'.join(suffixes)}, not {path.name!r}"
        )
    suffix = path.suffix if path.suffix in suffixes else suffixes[0]
    net = net.cpu().eval()
    trained = Trained(net, name, stem or "imagenet", size, tensors(net), normal, policy)
    check_finite(trained.state, path)
    content = FORMATS[format].make(trained, suffix)
    with atomic_write(path) as file:
        file.write(content)
    return path


def torchvision(trained: Trained, suffix: str) -> bytes:
    """Return a state dict for torchvision's network of that name, without its `fc`."""
    return _for_torchvision(trained, suffix, "torchvision")


def _for_torchvision(trained: Trained, suffix: str, software: str) -> bytes:
    from torchvision import models  # noqa: PLC0415  (slow to import: it loads torch's compiler)

    if trained.name not in RESNETS or trained.name not in models.list_models():
        other = "timm, " if trained.name.startswith("timm:") else ""
        raise ValueError(
            f"{software} has no {trained.name}: export it as {other}safetensors or onnx"
        )
    content = _packed(trained, suffix)
    theirs = models.get_model(trained.name, weights=None)
    _fit_stem(theirs, trained, software)
    result = theirs.load_state_dict(_unpacked(content, suffix), strict=False)
    if result.unexpected_keys or result.missing_keys != ["fc.weight", "fc.bias"]:
        raise RuntimeError(f"torchvision's {trained.name} does not accept the weights: {result}")
    theirs.fc = nn.Identity()
    _same(theirs.eval(), trained, software)
    return content


def timm(trained: Trained, suffix: str) -> bytes:
    """Return a state dict for timm.create_model(NAME, num_classes=0, ...).

    Warns with the call, if it needs other arguments than these. Without timm, torchvision's network
    is used for the check: ResNets have the same names in both.
    """
    try:
        library = import_module("timm")
    except ImportError:
        return _for_torchvision(trained, suffix, "timm")
    own = trained.name.startswith(timm_net.PREFIX)
    if not own and not library.is_model(trained.name):
        raise ValueError(f"timm has no {trained.name}: export it as safetensors or onnx")
    content = _packed(trained, suffix)
    size = trained.size if own else None
    theirs = timm_net.network(f"timm:{trained.name.removeprefix('timm:')}", trained.channels, size)
    if own:
        _tell_arguments(trained)
    else:
        _fit_stem(theirs, trained, "timm")
    theirs.load_state_dict(_unpacked(content, suffix))
    _same(Wrapped(theirs, trained.channels, size).eval(), trained, "timm")
    return content


def _tell_arguments(trained: Trained) -> None:
    """Warn with the call of timm that takes the weights, if it needs arguments."""
    model, arguments = timm_net.create_arguments(trained.name, trained.size)
    if trained.channels != 3:
        arguments["in_chans"] = trained.channels
    if arguments:
        words = "".join(f", {key}={value!r}" for key, value in arguments.items())
        warnings.warn(
            f"load it with timm.create_model({model!r}, num_classes=0{words}, checkpoint_path=...)",
            NeedsArguments,
            stacklevel=5,
        )


def _fit_stem(theirs: Any, trained: Trained, software: str) -> None:
    """Give the ResNet of other software the first layers of ours.

    Warns with the code that does so, if ours are not ImageNet's.
    """
    kernel, stride, padding, pool = STEMS[trained.stem]
    channels = trained.channels
    if trained.stem == "imagenet" and theirs.conv1.in_channels == channels:
        return
    planes = theirs.conv1.out_channels
    theirs.conv1 = nn.Conv2d(channels, planes, kernel, stride, padding, bias=False)
    conv = f"torch.nn.Conv2d({channels}, 64, {kernel}, {stride}, {padding}, bias=False)"
    steps = f"net.conv1 = {conv}"
    if not pool:
        theirs.maxpool = nn.Identity()
        steps += " and net.maxpool = torch.nn.Identity()"
    warnings.warn(
        f"{software}'s {trained.name} has another stem: before loading the weights, set {steps}",
        StemDiffers,
        stacklevel=5,
    )


@torch.no_grad()
def _same(theirs: nn.Module, trained: Trained, software: str) -> None:
    """Raise RuntimeError if the network of other software gives other features than ours."""
    image = trained.image()
    if not torch.allclose(theirs(image), trained.net(image), rtol=1e-4, atol=1e-5):
        raise RuntimeError(
            f"{software}'s {trained.name} loads the weights but gives other features"
        )


def detectron2(trained: Trained, suffix: str) -> bytes:
    """Return a pickle of arrays, as MoCo's conversion for Detectron2 makes it.

    Detectron2 supports ImageNet's stem only.
    """
    if trained.name not in RESNETS:
        raise ValueError(
            f"detectron2 has ResNets only, no {trained.name}: export it as safetensors or onnx"
        )
    if trained.stem != "imagenet":
        kernel, stride, _, _ = STEMS[trained.stem]
        raise ValueError(
            "the stem differs: detectron2's is 7x7 with stride 2 and a max pool, the backbone's "
            f"({trained.stem}) is {kernel}x{kernel} with stride {stride} and no max pool; export "
            "it as safetensors or onnx"
        )
    arrays = {caffe_name(name): value.numpy() for name, value in trained.state.items()}
    about = {"__author__": "antipode", "matching_heuristics": True}
    content = pickle.dumps({"model": arrays, **about}, protocol=4)
    shapes = {name: array.shape for name, array in pickle.loads(content)["model"].items()}
    if shapes != dict(layout(RESNETS[trained.name], trained.channels)):
        raise RuntimeError(f"the names or shapes of {trained.name} are not detectron2's")
    return content


def onnx(trained: Trained, suffix: str) -> bytes:
    """Return an ONNX graph from normalised images (N,C,H,W) to features (N,width), for any N.

    A ResNet accepts any H and W, another network only the size that it was trained on.
    """
    try:
        runtime = [import_module(name) for name in ("onnx", "onnxscript", "onnxruntime")][-1]
    except ImportError:
        raise ValueError("ONNX needs an extra: pip install 'antipode[onnx]'") from None
    any_size = trained.name in RESNETS
    content = _onnx_program(trained, "NHW" if any_size else "N")
    session = runtime.InferenceSession(content)
    images = trained.image(3, 9 if any_size else 0)
    features = torch.from_numpy(session.run(["features"], {"images": images.numpy()})[0])
    with torch.no_grad():
        if not torch.allclose(features, trained.net(images), rtol=1e-3, atol=1e-4):
            raise RuntimeError("the ONNX graph gives other features than the network")
    return content


def _onnx_program(trained: Trained, dynamic: str) -> bytes:
    """Return the ONNX graph of a network.

    `dynamic` names the axes of the images NCHW that may have any size.
    """
    axes = {"NCHW".index(letter): torch.export.Dim(letter) for letter in dynamic}
    try:
        program = torch.onnx.export(
            trained.net,
            (trained.image(2),),
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=(axes,),
            dynamo=True,
            verbose=False,
        )
    except Exception as error:  # the exporter raises all kinds of errors for your own network
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise ValueError(f"torch.onnx cannot export {trained.name}: {reason[:300]}") from error
    if program is None:
        raise RuntimeError("torch.onnx returned no program")
    content: bytes = program.model_proto.SerializeToString()
    return content


def safetensors(trained: Trained, suffix: str) -> bytes:
    """Return a safetensors file, whose header describes the backbone and states a digest.

    The names are torchvision's, or timm's for a network of timm.
    """
    content = packed(trained.state, trained.about)
    again = load(content)
    same_names = again.keys() == trained.state.keys()
    if not same_names or any(not torch.equal(again[k], v) for k, v in trained.state.items()):
        raise RuntimeError("the safetensors file does not give the same weights")
    return content


def _packed(trained: Trained, suffix: str) -> bytes:
    """Return the content of a safetensors or torch file with the tensors of a backbone."""
    if suffix == ".safetensors":
        return packed(trained.state, trained.about)
    file = io.BytesIO()
    torch.save(trained.state, file)
    return file.getvalue()


def _unpacked(content: bytes, suffix: str) -> State:
    """Return the tensors in the content of a safetensors or torch file."""
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
