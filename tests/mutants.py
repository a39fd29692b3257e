"""Apply one error at a time to a copy of the source, and see whether the tests notice it.

    OMP_NUM_THREADS=1 python -m tests.mutants                 # all: about half an hour on one core
    python -m tests.mutants --only core/streamed.py --verbose
    python -m tests.mutants --missed                          # those that earlier tests missed
    python -m tests.mutants --golden                          # also ask the golden numbers

The mutants are in tests/mutants.txt. A mutant is killed if one of its tests fails, and that test
passes without the mutant. The tests state laws: golden numbers are left out (`-k 'not golden'`).
With --golden, they are asked about the mutants that survive the laws. Every mutant is tried in a
fork of one process that has imported torch, so this does not run on Windows.
"""

import argparse
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "docs", "examples", "benchmarks", "README.md", "CHANGELOG.md")
COPIED += ("CONTRIBUTING.md", "pyproject.toml", "Makefile")
LIMIT = 600  # seconds after which the tests of a mutant count as failed
OPTIONS = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:warnings", "--no-header"]
GOLDEN = "tests/test_presets.py tests/reproduction/test_digests.py"
IMPORTED = (
    *("torch", "torch._dynamo", "torchvision.transforms.v2", "sklearn.linear_model", "pytest"),
    *("hypothesis", "pydantic", "rich.progress", "safetensors.torch", "scipy.optimize", "typer"),
)


class Mutant(NamedTuple):
    """One error: `old` becomes `new` in `file`, and one of `tests` must fail.

    `missed` marks mutants that the tests of an earlier version did not notice.
    """

    file: str
    old: str
    new: str
    tests: str
    missed: bool


def listed(text: str) -> list[Mutant]:
    """Return the mutants of a list in the format of tests/mutants.txt."""
    mutants = []
    lines = [line for line in text.split("\n") if not line.startswith("#")]
    for block in "\n".join(lines).strip().split("\n\n"):
        head, *rest = block.strip("\n").split("\n")
        parts = {
            mark: "\n".join(line[2:] for line in rest if line.startswith(mark)) for mark in "-+?"
        }
        file, _, word = head.partition(" ")
        mutants.append(Mutant(file, parts["-"], parts["+"], parts["?"], word == "missed"))
    return mutants


MUTANTS = listed((ROOT / "tests" / "mutants.txt").read_text())


def occurrences(mutant: Mutant) -> int:
    """Return how often the old text of a mutant is in its file."""
    return (ROOT / "src" / "antipode" / mutant.file).read_text().count(mutant.old)


def words(tests: str) -> list[str]:
    """Return the words for pytest; golden numbers are left out."""
    chosen = shlex.split(tests)
    if "-k" not in chosen:
        return [*chosen, "-k", "not golden"]
    at = chosen.index("-k") + 1
    return [*chosen[:at], f"({chosen[at]}) and not golden", *chosen[at + 1 :]]


class Failures:
    """A plugin of pytest that writes the names of failed tests to a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.write_text("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            with self.file.open("a") as file:
                file.write(f"{report.nodeid}\n")


def tested(tree: Path, chosen: list[str], output: Path) -> int:
    """Run tests of a tree in a forked process, and return their exit status."""
    child = os.fork()
    if not child:
        status = 99
        try:
            os.setsid()
            with output.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.chdir(tree)
            here = [str(tree), str(tree / "src")]
            sys.path[:0] = here
            os.environ["PYTHONPATH"] = os.pathsep.join(here)
            for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
                del sys.modules[name]
            import pytest

            plugins = [Failures(output.with_name("failures"))]
            status = int(pytest.main([*OPTIONS, *chosen], plugins=plugins))
        finally:
            sys.stdout.flush()
            os._exit(status)
    return waited(child)


def waited(child: int) -> int:
    """Return the exit status of a child, which is killed after LIMIT seconds."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def passes(tree: Path, test: str, known: dict[str, bool]) -> bool:
    """Return True if a test passes without a mutant; `known` keeps the answers."""
    if test not in known:
        known[test] = not tested(tree, [test], tree.parent / "baseline")
    return known[test]


def tried(mutant: Mutant, tree: Path, golden: bool) -> tuple[str, str]:
    """Return what became of a mutant, and the name of the test that noticed it.

    It is killed, survived, golden (only golden numbers notice it) or broken (a wrong entry).
    """
    file = tree / "src" / "antipode" / mutant.file
    text = file.read_text()
    output = tree.parent / "output"
    if text.count(mutant.old) != 1:
        return "broken", ""
    file.write_text(text.replace(mutant.old, mutant.new))
    try:
        status = tested(tree, words(mutant.tests), output)
        if status in (4, 5, 99):  # no such test, or nothing selected
            return "broken", ""
        if status:
            return "killed", output.with_name("failures").read_text().partition("\n")[0]
        if golden and tested(tree, shlex.split(GOLDEN), output):
            return "golden", ""
        return "survived", ""
    finally:
        file.write_text(text)


def chosen(options: argparse.Namespace) -> Sequence[Mutant]:
    """Return the mutants that the options select."""
    mutants = [one for one in MUTANTS if not options.missed or one.missed]
    return [one for one in mutants if all(part in f"{one.file} {one.old}" for part in options.only)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="*", default=[], help="parts of a file's name or old text")
    parser.add_argument("--missed", action="store_true", help="mutants that earlier tests missed")
    parser.add_argument("--golden", action="store_true", help="ask golden numbers, too")
    parser.add_argument("--verbose", action="store_true", help="print what the tests print")
    options = parser.parse_args()
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for name in IMPORTED:  # once, and not for every mutant
        __import__(name)
    counts: dict[str, int] = {}
    known: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            ignored = {"ignore": shutil.ignore_patterns("__pycache__")} if source.is_dir() else {}
            copy(source, tree / name, **ignored)
        for mutant in chosen(options):
            begun = time.monotonic()
            found, test = tried(mutant, tree, options.golden)
            if test and not passes(tree, test, known):
                found = "broken"
            kind = f"{found} (missed before)" if mutant.missed else found
            counts[kind] = counts.get(kind, 0) + 1
            print(f"{found:9} {time.monotonic() - begun:5.1f} s {mutant.file}: {mutant.old!r}")
            if test:
                print(f"{'':18}{test}")
            if options.verbose or found == "broken":
                print((Path(folder) / "output").read_text()[-3000:])
            sys.stdout.flush()
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    return int(any(kind.startswith(("survived", "broken")) for kind in counts))


if __name__ == "__main__":
    sys.exit(main())
