import os

import pytest
import torch
from hypothesis import HealthCheck, settings

# how long an example takes depends on the machine, and on what else runs there
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# one thread per worker: two workers share two cores, and sums come out in one order
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker whole files, so that what a file sets up is set up once.

    Tests of one `xdist_group` stay together as well. Without this, `loadgroup` schedules every
    other test by itself, and its bookkeeping grows with the square of their number.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Files(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            return super()._split_scope(nodeid).partition("::")[0]

    return Files(config, log)


@pytest.fixture(scope="session", autouse=True)
def few_landmarks():
    """Let t-SNE place few images in the maps of reports, which takes most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("antipode.reporting.embedding_map.LANDMARKS", 100)
        patch.setattr("antipode.evaluation.layout.LANDMARKS", 100)
        yield


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def double():
    """Everything built inside the test is float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
