"""Names in messages: suggestions for misspelt ones, and texts that are short and safe."""

import pytest
import torch

from antipode.names import (
    LONGEST,
    brief,
    check_name,
    closest,
    did_you_mean,
    printable,
    several,
    unknown,
)

KNOWN = ["simclr", "mocov1", "mocov2", "byol"]


@pytest.mark.parametrize(
    ("name", "match"),
    [("simclrr", "simclr"), ("mocv2", "mocov2"), ("byol", "byol"), ("xyz", None), ("", None)],
)
def test_the_closest_name_is_the_most_similar_one_if_any_is(name, match):
    assert closest(name, KNOWN) == match
    assert closest(name, iter(KNOWN)) == match
    assert closest(name, []) is None


def test_the_cutoff_is_the_least_similarity_of_a_match():
    # "abcd" and "abxy" share two of four letters, so their similarity is 2 * 2 / 8
    assert closest("abcd", ["abxy"]) == "abxy"
    assert closest("abcd", ["abxy"], cutoff=0.51) is None
    # one letter of three: 2 * 1 / 6
    assert closest("abc", ["axy"]) is None
    assert closest("abc", ["axy"], cutoff=0.3) == "axy"


def test_the_hint_has_the_closest_name_and_all_names_in_their_order():
    choices = "simclr, mocov1, mocov2, byol"
    assert did_you_mean("simclrr", KNOWN) == f", did you mean 'simclr'? (choose from {choices})"
    assert did_you_mean("simclrr", iter(KNOWN)) == did_you_mean("simclrr", KNOWN)
    assert did_you_mean("xyz", KNOWN) == f": choose from {choices}"
    assert did_you_mean("xyz", []) == ": there are none"
    assert did_you_mean("abcd", ["abxy"], cutoff=0.51) == ": choose from abxy"


def test_an_unknown_name_is_a_value_error_that_is_returned_and_not_raised():
    error = unknown("protocol", "knm", ["knn", "linear"])
    assert type(error) is ValueError
    assert str(error) == (
        "there is no protocol 'knm', did you mean 'knn'? (choose from knn, linear)"
    )
    assert str(unknown("scale", "abcd", ["abxy"], cutoff=0.51)) == (
        "there is no scale 'abcd': choose from abxy"
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J\x7f", r"\x9b2J\x7f"),
        ("two\nlines\tand\r", r"two\nlines\tand\r"),
        ("\u202egnp.exe\u2066\u200f", r"\u202egnp.exe\u2066\u200f"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("name\udce9", r"name\udce9"),
    ],
)
def test_what_a_terminal_would_obey_becomes_visible(name, shown):
    assert printable(name) == shown
    assert printable(shown) == shown


@pytest.mark.parametrize("name", ["", "a b", "é 日本 עברית عربى", "👩\u200d👧", "C:\\x", "[red]"])
def test_ordinary_names_are_printed_as_they_are(name):
    assert printable(name) == name


def test_a_value_in_a_message_is_short():
    assert brief("a") == "'a'" and brief("x" * (LONGEST - 2)) == repr("x" * (LONGEST - 2))
    for value in ("x" * (LONGEST - 1), "x" * 10_000, [1.5] * 1000, {"a": "b" * 99}):
        text = brief(value)
        assert len(text) == LONGEST and text.endswith(" ...") and repr(value).startswith(text[:-4])
    assert brief("abcdefgh", most=8) == "'abc ..."
    assert brief(10**5000) == "a very large int"
    assert brief(torch.eye(2)) == "tensor([[1., 0.], [0., 1.]])"  # in one line


def test_a_name_in_other_letters_is_near():
    assert closest("MOCOV2", KNOWN) == "mocov2"


@pytest.mark.parametrize("name", ["mocv2", "", None, 5, ["byol"], {"byol": 1}])
def test_only_a_known_text_is_a_name(name):
    check_name("method", "byol", KNOWN)
    with pytest.raises(ValueError, match=r"there is no method .*choose from simclr, mocov1"):
        check_name("method", name, dict.fromkeys(KNOWN))


def test_one_name_and_several_are_a_list_of_names():
    assert several("protocols", None) is None
    assert several("protocols", "knn") == ["knn"]
    assert several("protocols", ("knn", "linear")) == ["knn", "linear"]
    for wrong in (5, {"knn": 1}, True):
        with pytest.raises(ValueError, match="protocols must be a name or a list of names, not"):
            several("protocols", wrong)
