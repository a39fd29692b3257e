"""The list of mutants fits the source, so that `python -m tests.mutants` can apply every one."""

import shlex

from tests.mutants import MUTANTS, ROOT, occurrences


def test_every_old_text_is_in_its_file_exactly_once():
    wrong = [(one.file, one.old, found) for one in MUTANTS if (found := occurrences(one)) != 1]
    assert not wrong


def test_every_mutant_is_another_one_and_names_tests_that_exist():
    assert len({(one.file, one.old, one.new) for one in MUTANTS}) == len(MUTANTS)
    for one in MUTANTS:
        assert one.old != one.new, one
        files = [word for word in shlex.split(one.tests) if word.startswith("tests/")]
        assert files and all((ROOT / file).exists() for file in files), one


def test_there_are_enough_mutants_in_every_package():
    own = [one for one in MUTANTS if not one.missed]
    assert len(own) >= 120 and len(MUTANTS) - len(own) >= 30
