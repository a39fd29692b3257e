"""A few random damages to JSON files and settings; `python -m tests.faults.fuzz_json` runs
thousands."""

import pytest

from tests.faults import fuzz_json


@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_file_or_setting_is_read_or_refused_in_one_sentence(seed):
    counts, failures = fuzz_json.fuzz(files=20, overrides=30, seed=100 + seed)
    assert not failures
    assert counts["files"] == 20 and counts["settings"] == 30
    assert counts["report 0"] and counts["setting 0"] + counts["setting 2"] == 30
