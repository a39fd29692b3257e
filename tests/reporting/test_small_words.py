"""Sentences of the page that depend on numbers and on labels."""

import re

import pytest

from antipode.reporting import page
from antipode.reporting.provenance import sentence
from antipode.runs.run import Run
from tests.reporting.runs import photographs, rows, run

TRACKED = "kNN accuracy was not tracked during training."


def text(path):
    """Return the text of a page, without markup."""
    found = page.page([Run(path)], images=False)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", found))


@pytest.mark.parametrize(("epochs", "words"), [(1, "1 epoch"), (4, "4 epochs")])
def test_one_epoch_is_one_epoch(tmp_path, epochs, words):
    path = run(tmp_path / "r", trained=False, **{"train.epochs": epochs})
    (path / "backbone.safetensors").touch()
    assert f"without labels: {words}, batch size" in sentence(Run(path))


@pytest.mark.parametrize("labels", ["none", "folders"])
def test_tracking_of_knn_is_offered_where_there_may_be_labels(tmp_path, labels):
    data = f"folder:{photographs(tmp_path / 'photos', 8)}"
    log = rows(10, knn=False)
    path = run(tmp_path / "r", data=data, log=log, trained=False, **{"data.labels": labels})
    found = text(path)
    assert (TRACKED in found) == (labels == "folders") and "KNN accuracy" not in found
