import copy
import functools
import itertools
import os
import re

# one thread per worker: two workers share two cores, and sums come out in one order; libraries and
# started processes read the variable when they are loaded, so it comes before all other imports
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

# how long an example takes depends on the machine, and on what else runs there
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


# files and groups that take long, the longest first: they start first, so that no worker has a long
# one left when the other has ended
LONG = (
    "ranks",
    "classifier",
    "tests/evaluation/test_evaluate.py",
    "tests/test_presets.py",
    "tests/test_export.py",
    "tests/test_cli.py",
    "tests/analysis/test_runs.py",
    "snippets",
    "tests/reproduction/test_make.py",
    "tests/faults/test_training.py",
    "tests/faults/test_weights.py",
    "tests/training/test_own_images.py",
    "tests/training/test_health.py",
    "tests/training/test_skip.py",
    "tests/core/test_fused.py",
    "tests/data/test_views.py",
    "tests/training/test_plan.py",
    "tests/nets/test_weights.py",
    "tests/faults/test_folder.py",
    "tests/runs/test_old_folders.py",
    "tests/reporting/test_page.py",
    "tests/evaluation/test_logistic.py",
    "tests/evaluation/test_detect.py",
    "tests/evaluation/test_features.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker whole files, so that what a file sets up is set up once.

    Tests of one `xdist_group` stay together as well. Without this, `loadgroup` schedules every
    other test by itself, and its bookkeeping grows with the square of their number. After the files
    of `LONG`, the others come by their number of tests.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Files(LoadGroupScheduling):
        ordered = False

        def _split_scope(self, nodeid):
            return super()._split_scope(nodeid).partition("::")[0]

        def _assign_work_unit(self, node):
            if not self.ordered:
                self.ordered = True
                for scope in reversed([scope for scope in LONG if scope in self.workqueue]):
                    self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    return Files(config, log)


@pytest.fixture(scope="session", autouse=True)
def few_landmarks():
    """Let t-SNE place few images in the maps of reports, which takes most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("antipode.reporting.embedding_map.LANDMARKS", 50)
        patch.setattr("antipode.evaluation.layout.LANDMARKS", 50)
        yield


def remembered(function):
    """Return a function that computes each result once, and returns a copy of it."""
    once = functools.cache(function)
    return functools.wraps(function)(lambda *arguments: copy.deepcopy(once(*arguments)))


@pytest.fixture(scope="session", autouse=True)
def made_once():
    """Draw shapes, read digits and ask git once, and not for each run that a test trains."""
    from antipode.data.sources.catalog import SETS
    from antipode.runs import environment

    with pytest.MonkeyPatch.context() as patch:
        for name in ("shapes", "digits"):
            patch.setitem(SETS, name, remembered(SETS[name]))
        patch.setattr(environment, "_git", functools.cache(environment._git))
        yield


@pytest.fixture(scope="session", autouse=True)
def power_stays_on():
    """Leave files in the memory of the system. tests/test_files.py says when they are synced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


NUMBERS = itertools.count()


@pytest.fixture
def tmp_path(request, tmp_path_factory):
    """Return a new folder. Pytest's own fixture looks at the folders of all earlier tests."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}{next(NUMBERS)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def double():
    """Everything built inside the test is float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
