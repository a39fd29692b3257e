"""Whatever a text is, reading it as JSON gives a value or one sentence."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antipode import json_text
from antipode.json_text import DEEPEST, HUGE, number, parse, read

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_json_is_read_as_it_was_written(value):
    text = json.dumps(value)
    assert parse(text, "x") == value and parse(text.encode(), "x") == value


@given(st.binary() | st.text())
def test_any_other_text_is_one_sentence_with_the_name(text):
    try:
        parse(text, "the file")
    except ValueError as error:
        assert str(error).startswith("the file ") and "\n" not in str(error)


def nested(levels, opening="[", closing="]"):
    return opening * levels + closing * levels


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":[', "]}")])
def test_the_deepest_nesting_is_read_and_one_level_more_is_not(opening, closing):
    levels = DEEPEST // opening.replace('"a":', "").count("[") // len(closing)
    assert parse(nested(levels, opening, closing), "x")
    for deeper in (levels + 1, 900, 100_000):
        with pytest.raises(ValueError, match=f"x is nested too deeply: JSON of at most {DEEPEST}"):
            parse(nested(deeper, opening, closing), "x")


def test_brackets_in_texts_and_beside_each_other_are_no_nesting():
    flat = [[], {}] * 100 + ["[" * 1000]
    assert parse(json.dumps(flat), "x") == flat


def test_a_number_of_thousands_of_digits_is_a_sentence():
    with pytest.raises(ValueError, match="x is not JSON: it holds a number of more than 4,300 dig"):
        parse("9" * 5000, "x")


def test_a_file_above_the_limit_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    file.write_text("[1, 2]")
    monkeypatch.setattr(json_text, "LARGEST", 6)
    assert read(file) == [1, 2]
    file.write_text("[1, 2] ")
    with pytest.raises(ValueError, match=r"a\.json has 7 bytes, and JSON files of at most 6 bytes"):
        read(file)


def test_a_pipe_and_a_device_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zeros.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "zeros.json"):
        with pytest.raises(ValueError, match=f"{name} is not a regular file"):
            read(tmp_path / name)


def test_a_number_is_finite_and_can_be_squared():
    assert all(map(number, (0, -1, 1.5, HUGE, -HUGE, 10**100)))
    odd = (None, True, "1", [1], float("nan"), float("inf"), 10**400, -(10**400), 1e151)
    assert not any(map(number, odd))
