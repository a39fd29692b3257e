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


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def double():
    """Everything built inside the test is float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
