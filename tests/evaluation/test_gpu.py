"""Tests on a GPU: workers decode a folder while the network runs, and the scores are the CPU's."""

import numpy as np
import pytest
import torch
from PIL import Image

import antipode
from antipode.data.sources.folder import folder
from antipode.data.sources.splits import Splits
from antipode.data.views.views import views
from antipode.evaluation.features import extract
from antipode.evaluation.finetune import chosen
from antipode.evaluation.task import Task
from antipode.evaluation.tuning import tune
from antipode.nets.backbone import backbone

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.xdist_group("gpu"),
]


@pytest.fixture(params=["png"])
def photos(tmp_path, request):
    """Return a folder of 192 files of different sizes, in three classes by colour."""
    generator = np.random.default_rng(0)
    for at in range(192):
        noise = generator.integers(0, 100, (*generator.integers(20, 90, 2), 3))
        noise[..., at % 3] += 150
        part = "test" if at % 4 == 3 else "train"
        file = tmp_path / "photos" / part / f"colour{at % 3}" / f"{at}.{request.param}"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.astype(np.uint8)).save(file)
    return tmp_path / "photos"


@pytest.mark.parametrize("workers", [0, 2])
def test_features_of_files_are_those_of_the_cpu(photos, workers):
    torch.manual_seed(0)
    net = backbone("resnet18", stem="small").double().eval()
    eval_view = views("eval", size=32)
    source = folder(photos).train
    cpu = extract(net, eval_view, source, batch=20, workers=0)
    gpu = extract(net.cuda(), eval_view.to("cuda"), source, batch=20, workers=workers)
    assert torch.allclose(cpu.x, gpu.x, atol=1e-4) and torch.equal(cpu.y, gpu.y)


def test_a_folder_is_trained_on_and_scored(photos, tmp_path):
    values = {"train.epochs": 2, "train.batch": 32, "views.size": 32, "monitor.knn_every": 1}
    values["data.labels"] = "folders"
    given = {
        "method": "simclr",
        "data": f"folder:{photos}",
        "backbone": "resnet18",
        "out": tmp_path / "run",
    }
    run = antipode.pretrain(**given, overrides=values, quiet=True)
    score = antipode.evaluate(run, ["knn20", "linear-fast", "retrieval"])
    assert score["linear-fast"].value > 90 and set(run.scores) >= {"knn20", "linear-fast"}
    cpu = antipode.evaluate(run, "retrieval", device="cpu")["retrieval"]
    assert score["retrieval"].n == cpu.n == 48
    assert score["retrieval"].value == pytest.approx(cpu.value, abs=6)  # of 96 views


def test_a_backbone_is_fine_tuned(photos, tmp_path):
    """A run is stored with plain memory layout; the GPU trains with channels in the last place."""
    values = {"train.epochs": 1, "train.batch": 32, "views.size": 32, "data.labels": "folders"}
    given = {"method": "simclr", "data": f"folder:{photos}", "backbone": "resnet18"}
    run = antipode.pretrain(**given, out=tmp_path / "run", overrides=values, quiet=True)
    model = antipode.finetune(run, f"folder:{photos}", tmp_path / "model", epochs=8, quiet=True)
    assert model.score.value > 80


@pytest.mark.parametrize("photos", ["jpg"], indirect=True)
def test_the_decoder_does_not_change_what_a_classifier_learns(photos, monkeypatch):
    """The GPU's crops differ from those of the workers by two grey levels at most."""
    train = folder(photos).train
    splits = Splits("photos", train, train, train, 32)
    torch.manual_seed(0)
    net = backbone("resnet10-slim", stem="small").cuda()
    task = Task(net, splits, 32, views("eval", size=32).to("cuda"), torch.device("cuda"))
    losses = {}
    for where in ("cpu", "gpu"):
        monkeypatch.setenv("ANTIPODE_DECODER", where)
        losses[where] = tune(task, chosen(task, epochs=4, batch=48)).losses
    assert losses["gpu"] != losses["cpu"]  # the GPU has decoded
    assert losses["gpu"] == pytest.approx(losses["cpu"], abs=0.05)
