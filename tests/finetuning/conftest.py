import warnings

import pytest
import torch

from antipode.nets.backbone import backbone
from antipode.nets.weight_file import About, Normal
from antipode.nets.weights import write
from tests.finetuning.pictures import folder


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Return a network for 16 px images, as text: a slim ResNet in a file, with random weights."""
    path = tmp_path_factory.mktemp("start") / "slim.safetensors"
    torch.manual_seed(0)
    about = About("resnet10-slim", "half", 3, 16, "mocov2", Normal((0.5,) * 3, (0.25,) * 3))
    write(backbone("resnet10-slim", stem="half"), path, about)
    return f"file:{path}@resnet10-slim"


@pytest.fixture(scope="session")
def colours(tmp_path_factory):
    """Return a folder of pictures in three classes, as the name of a data set."""
    return folder(tmp_path_factory.mktemp("colours") / "data")


@pytest.fixture(scope="session")
def model(start, colours, tmp_path_factory):
    """Return a classifier of the colours. It must not be modified."""
    import antipode

    out = tmp_path_factory.mktemp("model") / "model"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return antipode.finetune(start, colours, out, epochs=15, batch=16, device="cpu", quiet=True)
