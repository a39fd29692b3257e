"""The page of a network that no run has trained."""

import html
import json
import re

import pytest

from antipode.reporting import page
from antipode.runs.run import Run
from tests.reporting.runs import score

NUMBERS = {"low": 66.9, "high": 76.1, "chance": 10.3, "more": {"untrained": 71.7}}


def network(path, name):
    """Write the folder of a network that was evaluated and not trained."""
    path.mkdir()
    (path / "network.json").write_text(json.dumps({"network": name, "data": "digits", "seed": 0}))
    (path / "scores.json").write_text(json.dumps({"knn": {**score(71.7), **NUMBERS}}))
    return path


def head(paths):
    """Return the text at the top of a page."""
    text = page.page([Run(path) for path in paths], images=False)
    plain = html.unescape(re.sub(r"<[^>]+>", " ", text[text.index('class="eyebrow"') :]))
    return re.sub(r"\s+", " ", plain).partition("The charts on this page")[0]


def test_an_untrained_network_is_called_untrained_and_not_compared_with_itself(tmp_path):
    text = head([network(tmp_path / "r", "random:resnet10-slim")])
    assert "random:resnet10-slim" in text and "· The network is untrained 71.7" in text
    assert "An untrained network, random:resnet10-slim: its weights are random." in text
    assert "Compared with this network 71.7\xa0% chance 10.3\xa0%" in text.replace(" %", "\xa0%")
    for wrong in ("etter than untrained", "untrained network 71.7", "this run", "train several"):
        assert wrong not in text


@pytest.mark.parametrize("name", ["torchvision:resnet18", "file:x.pth@resnet18"])
def test_other_networks_are_named_and_compared_with_an_untrained_one(tmp_path, name):
    text = head([network(tmp_path / "t", name)])
    assert f"A network that no run here has trained, {name}: there are scores" in text
    assert "! No better than untrained 71.7" in text and "untrained network 71.7" in text


def test_several_untrained_networks_are_untrained_together(tmp_path):
    paths = [network(tmp_path / width, f"random:{width}") for width in ("resnet18", "resnet34")]
    assert "· The network is untrained 71.7" in head(paths)
