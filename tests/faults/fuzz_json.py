"""Fuzz the readers of JSON files and of settings, in a process with little memory.

    python -m tests.faults.fuzz_json                      # 3,000 files and 5,000 settings
    python -m tests.faults.fuzz_json --files 300 --settings 500 --seed 7

Each mutated file is a recipe.json, scores.json, analysis.json, env.json or metrics.jsonl of a run
folder, which `antipode show` and `antipode report` read. Each setting is a `--set` of
`antipode show`. A command must end with status 0, or with status 2 and one sentence that does not
speak of memory. Anything else is printed, and the exit status is then 1.
"""

import argparse
import contextlib
import io
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from antipode import cli
from antipode.data.views.policy import policies
from antipode.names import printable
from antipode.papers import list_methods
from antipode.recipe.recipe import schema
from antipode.recipe.resolve import resolve

MEMORY = 2 * 2**30  # bytes that a process may take beyond what the imports take
SLOW = 20.0  # seconds after which a case counts as a failure
LONGEST = 2000  # characters of an error message

DEEP = "[" * 3000 + "]" * 3000
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 0.5, -0.5, 1e9, 1e18, 1e300, -1e300, 10**30, 10**400),
    *(float("nan"), float("inf"), 2**31, 2**63, 2**64, -(2**63)),
    *(
        "",
        "a",
        "1",
        "1e9",
        "none",
        "nan",
        "x" * 10_000,
        "\x1b[2J",
        "\u202e",
        "\ud800",
        "\0",
        "../..",
    ),
    *([], {}, [[]], [1], [1, 2], ["a"], [None], {"a": 1}, {"": {}}, {"a": {"b": {"c": []}}}),
    *([0.5] * 1000, {str(at): at for at in range(300)}),
]
NAMES = ["step", "value", "n", "seed", "name", "__proto__", "", "a.b", "a" * 300, "\x1b]0;x\x07"]


# Mutations


def mutated(content: Any, draw: random.Random) -> bytes:
    """Return a JSON value as text, after some changes to the value or to the text."""
    kind = draw.random()
    if kind < 0.6:
        changed = content
        for _ in range(draw.choice([1, 1, 2, 5])):
            changed = changed_value(changed, draw)
        text = json.dumps(changed)
    elif kind < 0.7:
        text = inserted(json.dumps(content), draw, draw.choice([DEEP, "9" * 5000, "NaN", "1e999"]))
    else:
        return changed_bytes(json.dumps(content).encode(), draw)
    return text.encode("utf-8", "surrogatepass")


def changed_value(value: Any, draw: random.Random) -> Any:
    """Return a value in which one part is replaced, removed, renamed or added."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.05:
        return draw.choice(ODD)
    if isinstance(value, list):
        at = draw.randrange(len(value))
        return [*value[:at], changed_value(value[at], draw), *value[at + 1 :]]
    key = draw.choice(list(value))
    kind = draw.random()
    rest = {name: part for name, part in value.items() if name != key}
    if kind < 0.1:
        return rest
    if kind < 0.2:
        return rest | {draw.choice(NAMES): value[key]}
    if kind < 0.3:
        return value | {draw.choice([*NAMES, *value]): draw.choice(ODD)}
    return value | {key: changed_value(value[key], draw)}


def inserted(text: str, draw: random.Random, part: str) -> str:
    """Return a JSON text with a part in place of one of its values."""
    places = [at for at, mark in enumerate(text) if mark in ":,["]
    at = draw.choice(places) + 1 if places else 0
    end = min((place for mark in ",}]" if (place := text.find(mark, at)) >= 0), default=len(text))
    return text[:at] + part + text[end:]


def changed_bytes(text: bytes, draw: random.Random) -> bytes:
    """Return a text with bytes flipped, removed, repeated or cut off."""
    content = bytearray(text)
    for _ in range(draw.choice([1, 3, 20])):
        at = draw.randrange(len(content) + 1)
        match draw.randrange(5):
            case 0 if at < len(content):
                content[at] ^= 1 << draw.randrange(8)
            case 1:
                del content[at : at + draw.randrange(1, 20)]
            case 2:
                content[at:at] = content[at : at + draw.randrange(1, 200)]
            case 3:
                content[at:at] = draw.randbytes(draw.randrange(1, 5))
            case _:
                if draw.random() < 0.2:
                    del content[at:]
    return bytes(content)


# Files of a run folder


def originals() -> dict[str, Any]:
    """Return the content of the files of a run folder, by name."""
    recipe = json.loads(_written_recipe())
    # pictures would take seconds; without data there are none
    recipe["data"]["name"] = "folder:nonexistent"
    score = {"value": 61.25, "unit": "% top-1", "protocol": "knn", "settings": {"k": 200}}
    about = {"data": "digits", "split": "test", "n": 1000, "seed": 0, "epoch": "last"}
    curve = {"x": [1, 2, 3], "y": [0.1, 0.2, 0.4], "xlabel": "batch", "ylabel": "q"}
    analysis = {
        "settings": {"images": 512, "seed": 1},
        "values": {"mean": 0.25, "largest": None},
        "curves": {"q": curve},
        "histograms": {"cosines": {"edges": [-1, 0, 1], "counts": [3, 5], "xlabel": "cosine"}},
        "notes": ["a note"],
    }
    env = {"antipode": "0", "commit": "c0ffee+", "device": "cpu", "command": ["antipode", "x"]}
    env["directory"] = "/nonexistent"
    scores = {name: score | about | {"more": {"top-5": 99.0}} for name in ("knn", "linear@other")}
    return {
        "recipe.json": recipe,
        "scores.json": scores,
        "analysis.json": {"npc": analysis, "bank": {"skipped": "it has no bank"}},
        "env.json": env,
        "metrics.jsonl": [_row(step) for step in range(30)],
    }


def _row(step: int) -> dict[str, Any]:
    row: dict[str, Any] = {"step": step, "epoch": step // 10, "loss": 1 / (step + 1)}
    row |= {"lr_network": 0.1, "images_per_second": 160.0, "positive": 0.5}
    if step % 5 == 0:
        row |= {"spread": 0.9, "rank": 12.0, "knn": 30.0 + step}
    return row


def _written_recipe() -> str:
    with tempfile.TemporaryDirectory() as folder:
        resolve("digits.adco").write(Path(folder) / "recipe.json")
        return (Path(folder) / "recipe.json").read_text()


def write_case(folder: Path, number: int, draw: random.Random) -> list[list[str]]:
    """Write a run folder with one mutated file, and return the commands that read it."""
    contents = originals()
    target = list(contents)[number % len(contents)]
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if name == "metrics.jsonl":
            at = draw.randrange(len(content)) if name == target else -1
            lines = [json.dumps(row).encode() for row in content]
            if at >= 0:
                lines[at] = mutated(content[at], draw)
            data = b"\n".join(lines) + b"\n"
        else:
            data = mutated(content, draw) if name == target else json.dumps(content).encode()
        (folder / name).write_bytes(data)
    report = ["report", str(folder), "--no-images"]
    if target != "recipe.json":
        return [report]
    file = str(folder / "recipe.json")
    return [["show", file], ["show", str(folder)], ["show", file, "--set", "train.seed=1"], report]


# Settings


def settings(draw: random.Random) -> list[str]:
    """Return a command with one or two random settings of a random recipe."""
    method = draw.choice(list_methods())
    policy = draw.choice(list(policies()))
    keys = list(schema(method, policy)[0])
    words = ["show", "--method", method, "--data", draw.choice(["shapes", "cifar10", "imagenet"])]
    for _ in range(draw.choice([1, 1, 1, 2])):
        key = draw.choice(keys) if draw.random() < 0.9 else random_text(draw)
        words += ["--set", f"{key}={random_value(draw)}"]
    return words


def random_value(draw: random.Random) -> str:
    """Return the text of a value: a number of any size, JSON, a name or any characters."""
    match draw.randrange(6):
        case 0:
            return str(draw.randrange(-2, 2 ** draw.randrange(1, 70)))
        case 1:
            return f"{draw.uniform(-1, 10):.3g}e{draw.randrange(-400, 400)}"
        case 2:
            value = draw.choice(ODD)
            return value if isinstance(value, str) else json.dumps(value)
        case 3:
            return draw.choice(["[", '{"a":', "[[1,"]) * draw.choice([1, 60, 900, 3000])
        case 4:
            return draw.choice(
                [*list_methods(), *policies(), "true", "none", "NaN", "small", "sgd"]
            )
        case _:
            return random_text(draw)


def random_text(draw: random.Random) -> str:
    """Return some characters of any kind."""
    ranges = [(32, 126), (0, 31), (0x80, 0x24F), (0x2000, 0x206F), (0xD800, 0xDFFF)]
    low, high = draw.choice(ranges)
    count = draw.choice([0, 1, 5, 40])
    return "".join(chr(draw.randint(low, high)) for _ in range(count))


# The judgement


class Answer(NamedTuple):
    """The status of a command, and what is wrong with it; an empty text if nothing is."""

    status: Any
    problem: str


def answer(words: list[str]) -> Answer:
    """Run a command and judge its answer."""
    out, err = io.StringIO(), io.StringIO()
    start = time.monotonic()
    status: Any = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main(words)
    except SystemExit as end:
        status = end.code
    except BaseException as error:
        return Answer("exception", f"{type(error).__name__}: {str(error)[:300]}")
    seconds = time.monotonic() - start
    if seconds > SLOW:
        return Answer(status, f"took {seconds:.0f} s")
    if status not in (0, 2):
        return Answer(status, f"status {status}: {err.getvalue()[-300:]}")
    return Answer(status, _wrong_sentence(out.getvalue(), err.getvalue()) if status else "")


def _wrong_sentence(out: str, err: str) -> str:
    """Return what is wrong with the output of a command that refused its input."""
    sentence = err.splitlines()[-1] if err else ""
    if out or not sentence.startswith("antipode: ") or not 20 < len(sentence) < LONGEST:
        return f"{len(sentence)} characters: {sentence[:300]}"
    if "not enough memory" in sentence or "Error" in sentence or printable(sentence) != sentence:
        return f"not a sentence for a user: {sentence[:300]}"
    return ""


@contextlib.contextmanager
def little_memory(extra: int = MEMORY) -> Iterator[None]:
    """Limit the address space of this process to what it has and `extra` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def fuzz(files: int, overrides: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return how many cases there were of each kind, and a line on each that failed."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as home, little_memory():
        for number in range(files):
            folder = Path(home) / "run"
            commands = write_case(folder, number, random.Random(f"{seed} file {number}"))
            counts["files"] += 1
            for words in commands:
                status, wrong = answer(words)
                counts[f"{words[0]} {status}"] += 1
                if wrong:
                    failures.append(f"file {number} {' '.join(words)}: {wrong}")
        for number in range(overrides):
            words = settings(random.Random(f"{seed} setting {number}"))
            status, wrong = answer(words)
            counts["settings"] += 1
            counts[f"setting {status}"] += 1
            if wrong:
                failures.append(f"setting {number} {str(words)[:300]}: {wrong}")
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--settings", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    start = time.monotonic()
    counts, failures = fuzz(asked.files, asked.settings, asked.seed)
    print("\n".join(failures))
    print(f"{dict(counts)}, {len(failures)} failures, {time.monotonic() - start:.0f} s")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
