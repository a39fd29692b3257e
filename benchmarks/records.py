"""Read the lines in results/ and group them, for tables.py and pictures.py."""

import json
import statistics
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from accuracy import changed, read_lines, values_of
from entries import ENTRIES

RESULTS = Path(__file__).parent / "results"
Line = dict[str, Any]  # one line of a file in results/
Groups = dict[tuple[str, str], list[Line]]  # (run, differences from its recipe) -> lines by seed
NAMES = {
    "simclr": "SimCLR",
    "dcl": "DCL",
    "dclw": "DCLW",
    "mocov2": "MoCo v2",
    "byol": "BYOL",
    "simsiam": "SimSiam",
    "adco": "AdCo",
    "adco-symmetric": "AdCo, symmetric",
    "eqco": "EqCo on MoCo v2, K = 256",
    "simo-255-rule": "SiMo",
    "jcl": "JCL",
    "msbreg-2": "MSBReg, 2 views",
    "msbreg-4": "MSBReg, 4 views",
    "dclw-multicrop": "DCLW, 6 small crops",
}
# table 1 of the DCL paper, kNN on CIFAR-10 at 200 epochs: batch size, SimCLR, DCL
TABLE_1 = ((32, 78.9, 83.7), (64, 80.4, 84.4), (128, 81.1, 84.4), (256, 81.4, 84.2))


def json_lines(name: str) -> list[Line]:
    """Return the lines of a file in results/, none if there is no file."""
    file = RESULTS / name
    texts = file.read_text().splitlines() if file.exists() else []
    return [json.loads(text) for text in texts if text]


# Accuracy


@cache
def accuracy_lines() -> list[Line]:
    """Return the last line of each combination of run, seed and values."""
    return read_lines(RESULTS / "accuracy.jsonl")


@cache
def current_values(name: str, epochs: int, batch: int) -> Line:
    """Return the values that a run of accuracy.py would have now."""
    return values_of(replace(ENTRIES[name], epochs=epochs, batch=batch))


def entry_name(line: Line) -> str:
    """Return the entry of accuracy.py that a run belongs to."""
    return str(line["run"].removesuffix(" validation").removesuffix(f"-{line['epochs']}"))


def differences(line: Line) -> str:
    """Return the values of a run that differ from its current recipe, as text."""
    now = current_values(entry_name(line), line["epochs"], line["batch"])
    return ", ".join(value_text(*item) for item in changed(line["values"], now).items())


def value_text(key: str, value: Any) -> str:
    """Return a value of a recipe in a few words."""
    if key == "optim.network.warmup" and not value:
        return "no warm-up"
    if key == "views.scale":
        return f"crops from {value[0]}"
    return f"{key.rsplit('.', maxsplit=1)[-1]} {value}"


def grouped(lines: list[Line]) -> Groups:
    """Group lines by run and by its differences from the recipe; a group holds several seeds."""
    groups: Groups = defaultdict(list)
    for line in lines:
        groups[line["run"], differences(line)].append(line)
    return dict(groups)


def score_values(lines: list[Line], protocol: str) -> list[float]:
    """Return the scores of a protocol, of the lines that have one."""
    return [line["scores"][protocol]["value"] for line in lines if protocol in line["scores"]]


def fold_accuracy(line: Line) -> float | None:
    """Return linear-fast on held-out folds of the train images, by which values are chosen."""
    score = line["scores"].get("linear-fast")
    return max(score["more"]["held-out top1"].values()) if score else None


def table_of(line: Line) -> str:
    """Return which table of RESULTS.md a run belongs to."""
    if line["run"].endswith("validation"):
        return "validation"
    if "-paper-" in line["run"]:
        return "settings"
    return "rule" if line["run"].startswith("simo-") and line["epochs"] == 100 else "accuracy"


def runs_of(table: str) -> Groups:
    """Return the runs of one table, best kNN first.

    SiMo with all 255 negatives is SiMo as its recipe has it, so it is also in the table of methods.
    """
    lines = [
        line
        for line in accuracy_lines()
        if table_of(line) == table or (table == "accuracy" and line["run"] == "simo-255-rule")
    ]

    def mean_knn(group: tuple[Any, list[Line]]) -> float:
        return statistics.mean(score_values(group[1], "knn"))

    return dict(sorted(grouped(lines).items(), key=mean_knn, reverse=True))


def methods() -> Groups:
    """Return the methods by name and differences from the recipe, best kNN first.

    Of each method these are the runs with the fewest differences.
    """
    groups = runs_of("accuracy")
    fewest: dict[str, str] = {}
    for run, text in groups:
        if run not in fewest or count(text) <= count(fewest[run]):
            fewest[run] = text
    return {
        (NAMES.get(entry_name(lines[0]), run) + epochs_text(lines[0]), text): lines
        for (run, text), lines in groups.items()
        if fewest[run] == text
    }


def count(text: str) -> int:
    """Return the number of differences in a text of `differences`."""
    return len(text.split(", ")) if text else 0


def epochs_text(line: Line) -> str:
    """Return the number of epochs as an addition to a name, nothing for the usual 100."""
    return "" if line["epochs"] == 100 else f", {line['epochs']} epochs"


# Throughput


def visits() -> list[Line]:
    """Return one line for each time that throughput.py ran."""
    return json_lines("throughput.jsonl")


def over_lightly(visit: Line) -> list[float]:
    """Return SimCLR's images/s in one visit: ours, the best of lightly's, and the ratio.

    The list is empty if one of them was not measured.
    """
    ours = [
        row["ours"]["images_per_second"]
        for row in visit["rows"]
        if row["recipe"] == "cifar10.simclr"
    ]
    theirs = [result["images_per_second"] for result in visit["lightly"]]
    return [ours[0], max(theirs), ours[0] / max(theirs)] if ours and theirs else []
