import json

import pytest

import antipode
from tests.reporting.runs import ANALYSIS, run, score


@pytest.fixture(scope="session")
def atomic_write(tmp_path_factory):
    """A labelled run with everything that a run may have, and its page."""
    folder = tmp_path_factory.mktemp("whole")
    scores = {"knn": score(61.25), "linear": score(70.0, protocol="linear")}
    path = run(folder / "digits run", scores=scores, **{"method.tau": 0.7})
    (path / "analysis.json").write_text(json.dumps(ANALYSIS))
    return path, antipode.report([path], out=folder / "page.html")
