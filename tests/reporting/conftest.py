import json

import pytest

import antipode
from tests.reporting.runs import ANALYSIS, run, score


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """Return a labelled run that has every kind of result, and its page."""
    folder = tmp_path_factory.mktemp("whole")
    scores = {"knn": score(61.25), "linear": score(70.0, protocol="linear")}
    path = run(folder / "digits run", scores=scores, **{"method.tau": 0.7})
    (path / "analysis.json").write_text(json.dumps(ANALYSIS))
    return path, antipode.report([path], out=folder / "page.html")


@pytest.fixture(scope="session")
def imageless(whole, tmp_path_factory):
    """Return the page of the same run without images."""
    out = tmp_path_factory.mktemp("imageless") / "page.html"
    return antipode.report([whole[0]], out=out, images=False)
