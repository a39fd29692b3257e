"""The log of a run: lines that are no JSON objects are skipped, and columns hold the numbers."""

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antipode.json_text import number
from antipode.runs import lines as lines_module
from antipode.runs import log as log_module
from antipode.runs.folder import RunFolder
from antipode.runs.lines import read_blocks
from antipode.runs.log import read_log

# lines that fit together only with others, so that a reader of several at once could be misled
TRICKY = [
    *(b'{"a": 1}, {"b": 2', b'"c": 3}', b'{"a": [1', b'{"b": 2}]}', b'{"a": 1},{"b": 2}', b"{"),
    *(b'{"a": {"b": 1}}', b"[1]", b"1", b"null", b"", b"  ", b'{"a": 1}\r', b'{"a": "\xff"}'),
    *(b'{"a": 1', b"}", b'{"a": [[1]]}', b'{"a": NaN}', b'{"a": ' + b"9" * 5000 + b"}", b"\x00"),
]


def one_by_one(text):
    """Return the objects of a text, each line parsed on its own."""
    found = []
    for line in text.split(b"\n"):
        try:
            value = json.loads(line.decode("utf-8", "replace"))
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


@given(
    st.lists(st.sampled_from(TRICKY) | st.integers().map(lambda at: b'{"step": %d}' % at)),
    st.booleans(),
    st.integers(1, 50),
)
def test_a_file_is_read_as_if_line_by_line(tmp_path_factory, parts, ends, block):
    file = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    text = b"\n".join(parts) + (b"\n" if ends else b"")
    file.write_bytes(text)
    before = lines_module.BLOCK
    lines_module.BLOCK = block
    try:
        found = [row for rows in read_blocks(file) for row in rows]
    finally:
        lines_module.BLOCK = before
    assert json.dumps(found) == json.dumps(one_by_one(text))


def test_the_final_loss_is_the_mean_of_the_last_tenth_of_the_lines_with_a_loss():
    rows = [{"step": step, "loss": float(step)} for step in range(30)]
    assert read_log([rows]).final_loss() == (28.0, 3)
    assert read_log([[*rows, {"loss": None}, {"knn": 1.0}]]).final_loss() == (28.0, 3)
    assert read_log([rows[:5]]).final_loss() == (4.0, 1)
    assert read_log([[{"loss": 9.0, "contrast": 2.5}]]).final_loss() == (2.5, 1)  # AdCo's
    assert read_log([[{"loss": None}]]).final_loss() is read_log([]).final_loss() is None


def test_a_line_that_is_too_long_is_skipped_and_the_others_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "BLOCK", 16)
    monkeypatch.setattr(lines_module, "LONGEST", 64)
    file = tmp_path / "metrics.jsonl"
    for size, kept in ((40, 3), (1000, 2)):
        middle = b'{"a": "' + b"x" * size + b'"}'
        file.write_bytes(b'{"step": 1}\n' + middle + b'\n{"step": 2}')
        assert sum(map(len, read_blocks(file))) == kept
    file.write_bytes(b'{"step": 1}\n{"a": "' + b"x" * 1000)
    assert list(read_blocks(file)) == [[{"step": 1}]]


metrics = st.dictionaries(
    st.sampled_from(["step", "loss", "a", "b"]),
    st.floats() | st.integers() | st.none() | st.booleans() | st.text() | st.just(10**400),
)


@given(st.lists(st.lists(metrics, max_size=4), max_size=4))
def test_columns_hold_the_numbers_of_all_lines(blocks):
    log = read_log(blocks)
    rows = [row for block in blocks for row in block]
    assert log.lines == len(rows)
    for name in ("step", "loss", "a", "b"):
        expected = [row[name] if number(row.get(name)) else math.nan for row in rows]
        np.testing.assert_array_equal(log.column(name), np.array(expected, dtype=float))
        assert (name in log.series) == any(number(row.get(name)) for row in rows)
    odd = [any(not number(value) for value in row.values()) for row in rows]
    assert log.odd.tolist() == odd
    losses = [at for at, row in enumerate(rows) if "loss" in row and not number(row["loss"])]
    assert log.odd_losses == losses
    texts = {name for row in rows for name, value in row.items() if isinstance(value, bool | str)}
    assert set(log.texts) == texts


def test_a_new_name_on_every_line_does_not_take_a_column_each(monkeypatch):
    monkeypatch.setattr(log_module, "MOST", 3)
    log = read_log([[{f"m{at}": 1.0} for at in range(10)], [{"m0": 2.0}]])
    assert set(log.series) == {"m0", "m1", "m2"} and log.cut
    assert log.series["m0"].values.tolist() == [1.0, 2.0]


def test_rewinding_keeps_the_earlier_rows_and_drops_a_partial_line(tmp_path):
    folder = RunFolder(tmp_path)
    for step in range(5):
        folder.record({"step": step, "loss": 1.0})
    file = tmp_path / "metrics.jsonl"
    before = file.stat().st_ino
    folder.rewind(5)
    assert file.stat().st_ino == before  # nothing to do
    with file.open("a") as handle:
        handle.write('{"step": 5, "lo')
    folder.rewind(5)
    assert [row["step"] for row in folder.metrics()] == [0, 1, 2, 3, 4]
    assert file.read_text().endswith("\n")
    folder.rewind(2)
    assert [row["step"] for row in folder.metrics()] == [0, 1]
