"""Run folders of an earlier version still open, score and resume.

`tests/fixtures/` holds one run folder of each of three methods, written at commit dc86232: two
epochs on `digits`, the checkpoint of the first epoch, and the backbone, metrics and kNN score of
the second. The weights of that checkpoint were rounded to four bits of mantissa, so that the
archives stay small, and the second epoch was trained from the rounded ones.
"""

import json
import tarfile
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import antipode
from antipode.nets.weight_file import Unchecked

FIXTURES = Path(__file__).parents[1] / "fixtures"
METHODS = ("dcl", "adco", "jcl")


@pytest.fixture
def folder(request, tmp_path):
    """The run folder of one method, unpacked."""
    with tarfile.open(FIXTURES / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / request.param


@pytest.mark.parametrize("folder", METHODS, indirect=True)
def test_an_old_folder_opens_and_scores_as_it_did(folder):
    before = json.loads((folder / "scores.json").read_text())["knn20"]
    score = antipode.evaluate(folder, ["knn20"])["knn20"]
    assert score.value == pytest.approx(before["value"], abs=0.3)  # one image of 360
    assert score.n == before["n"] and score.seed == before["seed"]


@pytest.mark.parametrize("folder", ["dcl"], indirect=True)
@pytest.mark.parametrize("use", ["evaluate", "embed", "export", "file", "start"])
def test_an_old_folder_opens_with_one_warning(folder, use):
    """Its weights state neither a digest nor the stem, which its recipe does."""
    uses = {
        "evaluate": lambda: antipode.evaluate(folder, ["knn20", "knn10"]),
        "embed": lambda: antipode.embed(folder, "digits"),
        "export": lambda: antipode.export(folder, "safetensors", folder / "out.safetensors"),
        "file": lambda: antipode.load_backbone(f"file:{folder}@resnet10-slim"),
        "start": lambda: start_from(folder, folder / "next"),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        uses[use]()
    said = [str(one.message) for one in caught if one.category is Unchecked]
    assert len(said) == 1 and "backbone.safetensors was written by an earlier version" in said[0]


def start_from(folder, out):
    overrides = {"backbone.weights": str(folder)}
    antipode.pretrain(
        "digits.dcl", epochs=1, batch=700, out=out, device="cpu", quiet=True, overrides=overrides
    )


@pytest.mark.parametrize("folder", METHODS, indirect=True)
def test_an_old_folder_resumes_to_the_weights_that_it_had(folder):
    backbone = folder / "backbone.safetensors"
    before = load_file(backbone)
    backbone.unlink()
    run = antipode.pretrain(
        f"digits.{folder.name}",
        out=folder,
        epochs=2,
        batch=256,
        seed=3,
        device="cpu",
        quiet=True,
        overrides={"train.checkpoint_every": 1, "train.keep": 3, "monitor.log_every": 1},
    )
    steps = [row["step"] for row in run.metrics()]
    assert steps == sorted(set(steps))
    after = load_file(backbone)
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, before[name], atol=1e-4, rtol=1e-3, msg=name)
