"""A few hundred random damages to data sets; `python tests/faults/fuzz_data.py` runs thousands."""

import pytest

from tests.faults import fuzz_data


@pytest.mark.parametrize(
    ("kind", "count"), [("images", 200), ("tars", 100), ("packs", 60), ("coco", 60), ("voc", 60)]
)
def test_damaged_data_are_read_or_refused_in_a_sentence(kind, count):
    counts, _ = fuzz_data.run(kind, count, seed=7)
    assert set(counts) <= {"read", "refused"}, counts.most_common(5)
    assert counts.total() == count and counts["refused"] > count / 4 and counts["read"]
