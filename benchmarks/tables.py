"""Tables of RESULTS.md and README.md from the lines in results/: what is between two marks is made anew, the rest kept.

python benchmarks/tables.py            # tables and pictures
python benchmarks/tables.py --check    # status 1 where a page does not say what results/ say
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import accuracy as list_of

HERE = Path(__file__).parent
RESULTS, README, PICTURES = (
    HERE / "RESULTS.md",
    HERE.parent / "README.md",
    HERE.parent / "docs" / "pictures",
)
Line = dict[str, Any]
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
TABLE_1 = (
    (32, 78.9, 83.7),
    (64, 80.4, 84.4),
    (128, 81.1, 84.4),
    (256, 81.4, 84.2),
)  # DCL's: batch, SimCLR, DCL


@cache
def accuracy() -> list[Line]:
    """The last line of each run, seed and set of values."""
    return list_of.lines(HERE / "results" / "accuracy.jsonl")


@cache
def today(name: str, epochs: int, batch: int) -> Line:
    """What an entry of accuracy.py would be run with now."""
    return list_of.values_of(replace(list_of.ENTRIES[name], epochs=epochs, batch=batch))


def entry(line: Line) -> str:
    """The entry of accuracy.py that a run is of."""
    return str(line["run"].removesuffix(" validation").removesuffix(f"-{line['epochs']}"))


def apart(line: Line) -> str:
    """What a run had that its recipe has not, or no longer."""
    now = today(entry(line), line["epochs"], line["batch"])
    return ", ".join(
        told(key, value) for key, value in list_of.changed(line["values"], now).items()
    )


def told(key: str, value: Any) -> str:
    """A value of a recipe in few words."""
    if key == "optim.network.warmup" and not value:
        return "no warm-up"
    return (
        f"crops from {value[0]}"
        if key == "views.scale"
        else f"{key.rsplit('.', maxsplit=1)[-1]} {value}"
    )


def spread(values: list[float]) -> str:
    """Mean, and with several seeds the deviation and their number; nothing of nothing."""
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else ""
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f} (n = {len(values)})"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def grouped(lines: list[Line]) -> dict[tuple[str, str], list[Line]]:
    """Lines by run and what sets it apart from its recipe, whatever the seed."""
    found: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        found[line["run"], apart(line)].append(line)
    return dict(found)


def values(lines: list[Line], protocol: str) -> list[float]:
    return [line["scores"][protocol]["value"] for line in lines if protocol in line["scores"]]


def given(values: Line) -> str:
    return ", ".join(f"{key.removeprefix('method.')} {value}" for key, value in values.items())


def folds(line: Line) -> float | None:
    """linear-fast on held-out folds of the train images: what values are chosen by."""
    found = line["scores"].get("linear-fast")
    return max(found["more"]["held-out top1"].values()) if found else None


def part(line: Line) -> str:
    """Which table of RESULTS.md a run belongs to."""
    if line["run"].endswith("validation"):
        return "validation"
    if "-paper-" in line["run"]:
        return "settings"
    return "rule" if line["run"].startswith("simo-") and line["epochs"] == 100 else "accuracy"


def atomic_write(line: Line) -> bool:
    """SiMo as its recipe has it."""
    return bool(line["run"] == "simo-255-rule")


def chosen(name: str) -> dict[tuple[str, str], list[Line]]:
    """The runs of one table, best kNN first; SiMo's with all 255 negatives is SiMo as its recipe has it."""
    groups = grouped(
        [
            line
            for line in accuracy()
            if part(line) == name or (name == "accuracy" and atomic_write(line))
        ]
    )
    return dict(sorted(groups.items(), key=lambda group: -statistics.mean(values(group[1], "knn"))))


def runs() -> str:
    """One row for each method, and for each that ran longer or with other values."""
    groups = chosen("accuracy")
    if not groups:
        return "Nothing is measured yet."
    protocols = list(
        dict.fromkeys(
            name for lines in groups.values() for line in lines for name in line["scores"]
        )
    )
    head = ["run", "recipe", "not as in it", "epochs", *protocols, "train folds"]
    head += ["images/s", "GPU memory", "training", "commit"]
    rows = []
    for (name, other), lines in groups.items():
        first = lines[0]
        recipe = f"{first['recipe']} {given(list_of.ENTRIES[entry(first)].values)}".strip()
        scores = [spread(values(lines, one)) for one in protocols]
        scores.append(spread([one for line in lines if (one := folds(line))]))
        cost = [
            "" if first.get("beside") else f"{first['images_per_second']:,.0f}",
            f"{first['memory_gib']:.1f} GiB",
        ]
        commits = ", ".join(dict.fromkeys(line["commit"] for line in lines))
        rows.append(
            [name, recipe, other, str(first["epochs"]), *scores, *cost, took(first), commits]
        )
    return f"{where([line for lines in groups.values() for line in lines])}\n\n{table(head, rows)}"


def scores(name: str, other: str = "") -> list[str]:
    """kNN and linear-fast of a run, as its recipe has it or with other values; empty where there is none."""
    lines = grouped(accuracy()).get((name, other), [])
    return [spread(values(lines, one)) for one in ("knn", "linear-fast")]


def settings() -> str:
    """DCL against SimCLR in the paper's settings, beside the paper's table 1 (200 epochs)."""
    groups = chosen("settings")
    if not groups:
        return "DCL against SimCLR in the paper's settings is not measured yet."
    rows = []
    for batch, simclr, dcl in TABLE_1:
        ours = [*scores(f"simclr-paper-{batch}"), *scores(f"dcl-paper-{batch}")]
        gain = (
            f"{float(ours[2].split()[0]) - float(ours[0].split()[0]):+.1f}"
            if ours[0] and ours[2]
            else ""
        )
        if any(ours):
            rows.append([str(batch), *ours, gain, f"{simclr} / {dcl}", f"{dcl - simclr:+.1f}"])
    head = ["batch", "SimCLR knn", "linear-fast", "DCL knn", "linear-fast", "gain in knn"]
    facts = where([line for lines in groups.values() for line in lines])
    return f"{facts}\n\n{table([*head, 'paper, knn at 200 epochs', 'gain'], rows)}"


def rule() -> str:
    """SiMo with K negatives, with EqCo's rule and without."""
    groups = chosen("rule")
    if not groups:
        return "SiMo with fewer negatives is not measured yet."
    rows = []
    for other in sorted({other for _, other in groups}):
        for k in (4, 16, 255):
            found = [
                cell
                for way in ("rule", "rule-own", "plain")
                for cell in scores(f"simo-{k}-{way}", other)
            ]
            rows += [[str(k), *found, other]] if any(found) else []
    head = ["K", "with the rule: knn", "linear-fast", "a draw for each query: knn", "linear-fast"]
    head += ["without the rule: knn", "linear-fast", "not as in the recipe"]
    return f"{where([line for lines in groups.values() for line in lines])}\n\n{table(head, rows)}"


def tried() -> str:
    """Values tried on held-out train images."""
    rows = [
        [entry(line), other, str(line["epochs"]), spread(values(lines, "knn")), line["commit"]]
        for (_, other), lines in chosen("validation").items()
        for line in lines[:1]
    ]
    return table(["run", "not as in its recipe", "epochs", "knn", "commit"], rows)


def methods() -> dict[tuple[str, str], list[Line]]:
    """The methods by name and what differs from the recipe, best kNN first: of each the runs that are nearest to it."""
    groups, nearest = chosen("accuracy"), {}
    for run, other in sorted(
        groups, key=lambda key: len(key[1].split(", ")) if key[1] else 0, reverse=True
    ):
        nearest[run] = other
    return {
        (NAMES.get(entry(lines[0]), run) + longer(lines[0]), other): lines
        for (run, other), lines in groups.items()
        if nearest[run] == other
    }


def longer(line: Line) -> str:
    return "" if line["epochs"] == 100 else f", {line['epochs']} epochs"


def short() -> str:
    """README's table: the methods."""
    rows = [
        [
            name + (f" ({other})" if other else ""),
            *(spread(values(lines, one)) for one in ("knn", "linear-fast")),
        ]
        for (name, other), lines in methods().items()
    ]
    return table(["CIFAR-10, ResNet-18, 100 epochs", "kNN", "linear (logistic)"], rows)


def took(line: Line) -> str:
    """Seconds of training; a run that shared its GPU has none to compare."""
    return "" if line.get("beside") else f"{line['seconds']['training']:.0f} s"


def where(lines: list[Line]) -> str:
    """Hardware, versions and commits of some lines."""
    found = [
        ", ".join(sorted({str(line[key]) for line in lines}))
        for key in ("device", "torch", "commit", "date")
    ]
    return "{}, torch {}, commit {}, {}.".format(*found)


def visits() -> list[Line]:
    """One line for each time that throughput.py ran."""
    file = HERE / "results" / "throughput.jsonl"
    return (
        [json.loads(line) for line in file.read_text().splitlines() if line]
        if file.exists()
        else []
    )


def over_lightly(visit: Line) -> list[float]:
    """SimCLR's images/s in one visit: ours, the best of lightly's, and the ratio; nothing if one was not run."""
    ours = [
        row["ours"]["images_per_second"]
        for row in visit["rows"]
        if row["recipe"] == "cifar10.simclr"
    ]
    theirs = [one["images_per_second"] for one in visit["lightly"]]
    return [ours[0], max(theirs), ours[0] / max(theirs)] if ours and theirs else []


def throughput() -> str:
    """SimCLR against lightly visit by visit; every recipe against its own bare step, as last measured."""
    if not visits():
        return "Nothing is measured yet."
    compared = [
        [
            visit["date"],
            visit["commit"],
            f"{found[0]:,.0f}",
            f"{found[1]:,.0f}",
            f"**{found[2]:.2f}**",
        ]
        for visit in visits()
        if (found := over_lightly(visit))
    ]
    last = {
        (row["recipe"], given(row["set"])): (row, visit["commit"])
        for visit in visits()
        for row in visit["rows"]
    }
    rows = [
        [
            f"{name} {values}".strip(),
            f"{row['ours']['images_per_second']:,.0f}",
            f"{row['bare']['ms']:.2f} ms",
            f"{100 * row['share']:.1f} %",
            f"{row['bare']['memory_gib']:.1f} GiB",
            commit,
        ]
        for (name, values), (row, commit) in last.items()
    ]
    head = [
        "recipe",
        "images/s of `pretrain`",
        "bare step",
        "share of the bare speed",
        "GPU memory",
        "commit",
    ]
    facts = ", ".join(
        sorted({f"{v['device']}, torch {v['torch']}, {v['cores']} cores" for v in visits()})
    )
    against = table(["day", "commit", "ours", "lightly 1.6.0", "ratio"], compared)
    return f"{facts}. SimCLR, images/s:\n\n{against}\n\n{table(head, rows)}"


def breakdown() -> str:
    """Milliseconds of a step by kind of kernel, one column for each recipe as last measured."""
    file = HERE / "results" / "breakdown.jsonl"
    found = (
        [json.loads(line) for line in file.read_text().splitlines() if line]
        if file.exists()
        else []
    )
    if not found:
        return "Where the time of a step goes by kind of kernel (`benchmarks/breakdown.py`) is not measured yet."
    last = {f"{line['recipe']} {given(line['set'])}".strip(): line for line in found}
    kinds = list(dict.fromkeys(kind for line in last.values() for kind in line["ms"]))
    rows = [[kind, *(f"{line['ms'].get(kind, 0):.2f}" for line in last.values())] for kind in kinds]
    rows.append(["all", *(f"{sum(line['ms'].values()):.2f}" for line in last.values())])
    return f"{where(list(last.values()))}\n\n{table(['ms of a step', *last], rows)}"


PAGES = {
    RESULTS: {
        "accuracy": runs,
        "settings": settings,
        "rule": rule,
        "tried": tried,
        "throughput": throughput,
        "breakdown": breakdown,
    },
    README: {"results": short},
}


def filled(page: Path) -> str:
    """The text of a page with every marked section made anew."""
    text = page.read_text()
    for name, make in PAGES[page].items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if start not in text:
            sys.exit(f"{page.name} has no mark {start}")
        before, rest = text.split(start)
        text = f"{before}{start}\n{make()}\n{end}{rest.split(end)[1]}"
    return text


def pictures() -> None:
    """Accuracy of the methods, best first, beside DCL's gain at a small batch; images/s against lightly's."""
    import matplotlib.pyplot as plt

    PICTURES.mkdir(parents=True, exist_ok=True)
    groups = methods()
    if groups:
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(10, 0.36 * len(groups) + 1.4), layout="constrained", width_ratios=(5, 3)
        )
        dots(left, dict(reversed(groups.items())))
        left.set_title("CIFAR-10, ResNet-18, batch 256, 100 epochs", fontsize=10)
        more = any(other for _, other in groups)
        left.set_xlabel(
            "test accuracy in %" + ("; * with values that its recipe had before" if more else "")
        )
        left.legend(loc="lower right")
        pairs(right)
        figure.savefig(PICTURES / "accuracy.png", dpi=120)
        plt.close(figure)
    compared = [found for visit in visits() if (found := over_lightly(visit))]
    if compared:
        ours, theirs, _ = compared[-1]
        figure, axes = plt.subplots(figsize=(7, 1.7), layout="constrained")
        drawn = axes.barh(["antipode", "lightly 1.6.0"], [ours, theirs], color=["C0", "C7"])
        axes.bar_label(drawn, fmt="{:,.0f}", padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_xlabel(
            "images/s: SimCLR, ResNet-18, two views of 32 px, batch 256, bf16, one H200"
        )
        figure.savefig(PICTURES / "throughput.png", dpi=120)
        plt.close(figure)


def dots(axes: Any, groups: dict[tuple[str, str], list[Line]]) -> None:
    """kNN and linear accuracy, a pair of dots for each run: no bars, since the axis does not begin at nothing."""
    places, found = range(len(groups)), []
    for protocol, color, side in (("knn", "C0", -9), ("linear-fast", "C1", 9)):
        means = [
            statistics.mean(values(lines, protocol) or [float("nan")]) for lines in groups.values()
        ]
        axes.plot(means, places, "o", color=color, label=protocol, zorder=2)
        for mean, place in zip(means, places, strict=True):
            axes.annotate(
                f"{mean:.1f}",
                (mean, place),
                xytext=(side, 0),
                textcoords="offset points",
                fontsize=8,
                ha="right" if side < 0 else "left",
                va="center",
            )
        found.append(means)
    axes.hlines(places, *found, color="0.75", zorder=1)
    axes.set_yticks(places, [name + (" *" if other else "") for name, other in groups])
    axes.margins(x=0.12)
    axes.grid(axis="x", color="0.92")
    axes.set_axisbelow(True)


def pairs(axes: Any) -> None:
    """kNN of SimCLR and DCL by batch in DCL's settings, ours and the paper's."""
    for name, place, color in (("simclr", 1, "C7"), ("dcl", 2, "C0")):
        ours = [
            (row[0], values(grouped(accuracy()).get((f"{name}-paper-{row[0]}", ""), []), "knn"))
            for row in TABLE_1
        ]
        found = {batch: statistics.mean(knn) for batch, knn in ours if knn}
        axes.plot(
            [str(row[0]) for row in TABLE_1],
            [row[place] for row in TABLE_1],
            ":",
            color=color,
            marker=".",
        )
        axes.plot(
            [str(batch) for batch in found],
            list(found.values()),
            "-",
            color=color,
            marker="o",
            label=NAMES[name],
        )
        for batch, knn in found.items():
            axes.annotate(
                f"{knn:.1f}",
                (str(batch), knn),
                xytext=(0, 7),
                textcoords="offset points",
                fontsize=8,
                ha="center",
            )
    axes.plot([], [], "-o", color="black", label="ours, 100 epochs")
    axes.plot([], [], ":.", color="black", label="paper, 200 epochs")
    axes.margins(x=0.12, y=0.1)
    axes.set_xlabel("batch; DCL's own settings")
    axes.set_ylabel("kNN accuracy in %")
    axes.legend(
        loc="center right", bbox_to_anchor=(1, 0.37), fontsize=8
    )  # between the curves, over no point


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    for page in PAGES:
        made = filled(page)
        if not args.check:
            page.write_text(made)
        elif made != page.read_text():
            sys.exit(f"{page.name} is older than results/: run benchmarks/tables.py")
    if not args.check:
        pictures()


if __name__ == "__main__":
    main()
