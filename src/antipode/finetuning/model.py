"""The folder of a classifier: model.safetensors, model.json and scores.json.

model.json is written last, and states the digest of the weights. So a folder that has it is whole.
Shapes: N images, C classes, D features.
"""

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from antipode import json_text
from antipode.data.views.policy import evaluation_policy, policies
from antipode.data.views.views import views as make_views
from antipode.evaluation.score import Score
from antipode.files import atomic_write, finite
from antipode.names import brief
from antipode.nets import timm_net
from antipode.nets.backbone import RESNETS, Stem, width
from antipode.nets.weight_file import About, Normal, check_finite, packed, read
from antipode.nets.weight_file import about as about_file
from antipode.nets.weights import bare, fit, reopened, tensors
from antipode.paths import absolute
from antipode.runs.transform import Transform
from antipode.types import check_kind
from antipode.wording import option

MODEL = "model.json"
WEIGHTS = "model.safetensors"
SCORES = "scores.json"
# names for the classifier of a network that is not torchvision's or timm's; the first free one
HEADS = ("fc", "classifier", "head", "class_head")


class Classifier(nn.Module):
    """A backbone with a linear classifier: views (N,C,H,W) -> logits (N,C).

    Args:
        backbone: the network without classifier.
        fc: the classifier.
        classes: the names of the classes, in the order of the logits.
        transform: function from an image to the normalised tensor that the network takes.
        path: the folder that holds the classifier.
    """

    def __init__(
        self,
        backbone: nn.Module,
        fc: nn.Linear,
        classes: list[str],
        transform: Transform,
        path: Path,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.fc = fc
        self.classes = classes
        self.transform = transform
        self.path = path

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of normalised images; their softmax are probabilities."""
        logits: Tensor = self.fc(self.backbone(x))
        return logits

    @property
    def scores(self) -> dict[str, Any]:
        """The content of scores.json."""
        content = json_text.read(self.path / SCORES)
        return content if isinstance(content, dict) else {}

    def line(self) -> str:
        """Return the score on the test images as one line of text."""
        content = self.scores.get("finetune")
        if not content:
            return "no test images, so no score"
        try:
            return Score(**content).line()
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"{self.path / SCORES} holds no score of finetune ({brief(str(error))})"
            ) from None

    def __repr__(self) -> str:
        return f"Classifier({str(self.path)!r}, {len(self.classes)} classes)"


class Network(NamedTuple):
    """What is needed to build the network of a classifier again.

    Args:
        name: the name of the backbone, such as "resnet50".
        stem: the stem of a ResNet, None for other networks.
        channels: the number of channels of its images.
        size: the side of a view in pixels.
        policy: the view policy that the backbone was trained with.
        normal: the normalisation of the pixels.
    """

    name: str
    stem: Stem | None
    channels: int
    size: int
    policy: str
    normal: Normal

    @property
    def about(self) -> About:
        """The description that the header of the weights holds."""
        stem = self.stem if self.name in RESNETS else None
        return About(self.name, stem, self.channels, self.size, self.policy, self.normal)

    def transform(self) -> Transform:
        """Return the transform of evaluation."""
        view = make_views(
            evaluation_policy(self.policy),
            size=self.size,
            mean=self.normal.mean,
            std=self.normal.std,
        )
        return Transform(view, self.channels)


# Write


def check_out(folder: Path, overwrite: bool) -> None:
    """Raise ValueError if a classifier cannot be written to a folder."""
    if folder.is_file():
        raise ValueError(f"{folder} is a file, but a folder is needed")
    if (folder / "recipe.json").exists() or (folder / "network.json").exists():
        raise ValueError(f"{folder} holds a run: choose another {option('out')} for the classifier")
    if (folder / MODEL).exists() and not overwrite:
        raise ValueError(
            f"{folder} holds a classifier: choose another {option('out')}, or replace it "
            f"with {option('overwrite', True)}"
        )


def write(
    folder: Path,
    backbone: nn.Module,
    fc: tuple[Tensor, Tensor],
    network: Network,
    about: dict[str, Any],
    scores: dict[str, Any],
) -> None:
    """Write a classifier to a folder.

    All files are on the disk before the first of them gets its name, so an error such as a full
    disk leaves the old classifier whole. If the process is killed between the names, the folder has
    no model.json, and `load_classifier` does not accept it.

    Args:
        folder: the folder.
        backbone: the network without classifier.
        fc: the weight (C,D) and the bias (C,) of the classifier.
        network: what the network is.
        about: the entries of model.json on the classes and the training.
        scores: the content of scores.json.
    """
    state = tensors(backbone)
    head = head_name(network, state, len(fc[1]))
    state |= {f"{head}.weight": fc[0].detach().cpu(), f"{head}.bias": fc[1].detach().cpu()}
    check_finite(state, folder / WEIGHTS)
    content = packed(state, network.about)
    described = network._asdict() | {"network": network.name} | network.normal._asdict()
    del described["name"], described["normal"]
    digest = hashlib.sha256(content).hexdigest()
    model = described | {"classifier": head, "sha256": digest} | about
    _write_files(folder, {MODEL: _json(model), SCORES: _json(scores), WEIGHTS: content})


def _write_files(folder: Path, contents: dict[str, bytes]) -> None:
    """Write several files, of which the first gets its name last.

    The old file of that name is removed when all new ones are on the disk.
    """
    with ExitStack() as stack:  # the file that is opened last gets its name first
        for name, content in contents.items():
            file = stack.enter_context(atomic_write(folder / name))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        (folder / next(iter(contents))).unlink(missing_ok=True)


def head_name(network: Network, state: dict[str, Tensor], classes: int) -> str:
    """Return the name of the classifier's tensors without `.weight`.

    It is the name that torchvision or timm gives them, if they have the network.
    """
    if network.name.startswith("timm:"):
        theirs = _timm_names(network, classes) - state.keys()
        heads = {name.rpartition(".")[0] for name in theirs}
        if len(heads) == 1 and theirs == {f"{head}.{part}" for head in heads for part in PARTS}:
            return heads.pop()
    taken = {name.partition(".")[0] for name in state}
    return next(name for name in HEADS if name not in taken)


PARTS = ("weight", "bias")


def _timm_names(network: Network, classes: int) -> set[str]:
    """Return the names of the tensors of timm's network with a classifier."""
    with torch.device("meta"):  # for the names alone
        net = timm_net.network(network.name, network.channels, network.size, classes)
    return set(net.state_dict())


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(finite(content), indent=1, allow_nan=False).encode() + b"\n"


# Read


def load_classifier(folder: str | Path, into: nn.Module | None = None) -> Classifier:
    """Return the classifier of a folder, in eval mode on the CPU.

    Its attributes `classes` and `transform` are the names of the classes, and the function from an
    image to the tensor that the network takes.

    Args:
        folder: the folder that `finetune` has written.
        into: for a classifier on your own module, a module of that kind for the weights.
    """
    check_kind(nn.Module | None, into=into)
    folder = absolute(folder)
    _check_folder(folder)
    content = json_text.read(folder / MODEL)
    network, classes, head, digest = _described(content, folder / MODEL)
    if network.name.startswith("python:") and into is None:
        raise ValueError(
            f"{folder} holds a classifier on your own module ({network.name}), which cannot be "
            "built again by name: in Python, pass a module of that kind as into="
        )
    file = folder / WEIGHTS
    weights = read(file)
    if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
        raise ValueError(
            f"{file} was not written together with {MODEL} beside it: repeat finetune with "
            f"{option('overwrite', True)}"
        )
    if about_file(file) != network.about:
        raise ValueError(
            f"{folder / MODEL} describes another network, size or normalisation than {WEIGHTS} "
            "beside it: one of them has been changed, so repeat finetune with "
            f"{option('overwrite', True)}"
        )
    fc = [weights.pop(f"{head}.{part}", torch.empty(0)) for part in PARTS]
    own = into if network.name.startswith("python:") else None
    net, _ = reopened(weights, network.name, network.stem, own, network.size)
    fit(bare(net), weights, str(file))
    linear = nn.Linear(width(net), len(classes))
    if [value.shape for value in fc] != [linear.weight.shape, linear.bias.shape]:
        raise ValueError(f"{file} has no classifier of {len(classes)} classes under {head!r}")
    linear.load_state_dict(dict(zip(PARTS, fc, strict=True)))
    model = Classifier(net, linear, classes, network.transform(), folder)
    return model.eval().requires_grad_(False)


def _check_folder(folder: Path) -> None:
    """Raise FileNotFoundError if a folder holds no classifier."""
    if (folder / MODEL).exists():
        return
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    kind = "a run" if (folder / "recipe.json").exists() else f"no {MODEL}"
    raise FileNotFoundError(
        f"{folder} holds {kind}, not a classifier: antipode finetune writes one"
    )


def _described(content: Any, path: Path) -> tuple[Network, list[str], str, str]:
    """Return what model.json says: the network, the classes, the classifier's name, the digest.

    Raises ValueError if it has another form.
    """
    try:
        stem = content["stem"]
        if stem not in (None, *get_args(Stem)):
            raise ValueError(f"stem {brief(stem)}")
        network = Network(
            str(content["network"]),
            stem,
            int(content["channels"]),
            int(content["size"]),
            str(content["policy"]),
            Normal(*(tuple(float(one) for one in content[name]) for name in Normal._fields)),
        )
        classes = [str(name) for name in content["classes"]]
        head, digest = str(content["classifier"]), str(content["sha256"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{path} does not describe a classifier ({type(error).__name__}: {brief(str(error))})"
        ) from None
    if network.policy not in policies():
        raise ValueError(f"{path} names a view policy that does not exist: {network.policy!r}")
    return network, classes, head, digest
