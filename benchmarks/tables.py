"""Make the tables of RESULTS.md and README.md from the lines in results/, and the pictures.

    python benchmarks/tables.py            # write tables and pictures
    python benchmarks/tables.py --check    # exit with status 1 if a page differs from results/

Only the text between the marks <!-- name --> and <!-- end of name --> is replaced.
"""

import argparse
import statistics
import sys
import textwrap
from pathlib import Path

from entries import ENTRIES
from records import (
    TABLE_1,
    Groups,
    Line,
    accuracy_lines,
    entry_name,
    fold_accuracy,
    grouped,
    json_lines,
    methods,
    over_lightly,
    runs_of,
    score_values,
    visits,
)

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
README = HERE.parent / "README.md"


# Cells and tables


def mean_text(values: list[float]) -> str:
    """Return the mean as text; for several seeds also the standard deviation and their number."""
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else ""
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f} (n = {len(values)})"


def recipe_text(name: str, values: Line) -> str:
    """Return a recipe with the values that are set on top of it."""
    pairs = ", ".join(f"{key.removeprefix('method.')} {value}" for key, value in values.items())
    return f"{name} {pairs}".strip()


def training_time(line: Line) -> str:
    """Return the seconds of training, nothing for a run that shared its GPU."""
    return "" if line.get("beside") else f"{line['seconds']['training']:.0f} s"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def where(lines: list[Line]) -> str:
    """Return hardware, versions, commits and dates of some lines as one sentence."""
    device, torch, commit, date = (
        ", ".join(sorted({str(line[key]) for line in lines}))
        for key in ("device", "torch", "commit", "date")
    )
    return textwrap.fill(f"{device}, torch {torch}, commit {commit}, {date}.", 100)


def where_measured(groups: Groups) -> str:
    """Return `where` for all lines of some groups."""
    return where([line for lines in groups.values() for line in lines])


def scores_of(run: str, differences: str = "") -> list[str]:
    """Return kNN and linear-fast of a run with these differences from its recipe, empty if none."""
    lines = grouped(accuracy_lines()).get((run, differences), [])
    return [mean_text(score_values(lines, protocol)) for protocol in ("knn", "linear-fast")]


# Sections of the pages


def accuracy_section() -> str:
    """Return one row for each method, and for each run that was longer or had other values."""
    groups = runs_of("accuracy")
    if not groups:
        return "Nothing has been measured yet."
    names = [name for lines in groups.values() for line in lines for name in line["scores"]]
    protocols = list(dict.fromkeys(names))
    head = ["run", "recipe", "changed values", "epochs", *protocols, "train folds"]
    head += ["images/s", "GPU memory", "training", "commit"]
    rows = []
    for (run, differences), lines in groups.items():
        first = lines[0]
        folds = [accuracy for line in lines if (accuracy := fold_accuracy(line))]
        rows.append(
            [
                run,
                recipe_text(first["recipe"], ENTRIES[entry_name(first)].values),
                differences,
                str(first["epochs"]),
                *(mean_text(score_values(lines, protocol)) for protocol in protocols),
                mean_text(folds),
                "" if first.get("beside") else f"{first['images_per_second']:,.0f}",
                f"{first['memory_gib']:.1f} GiB",
                training_time(first),
                ", ".join(dict.fromkeys(line["commit"] for line in lines)),
            ]
        )
    return f"{where_measured(groups)}\n\n{table(head, rows)}"


def settings_section() -> str:
    """Return DCL against SimCLR in the paper's settings, with the paper's table 1 (200 epochs)."""
    groups = runs_of("settings")
    if not groups:
        return "DCL against SimCLR in the paper's settings has not been measured yet."
    rows = []
    for batch, simclr, dcl in TABLE_1:
        ours = [*scores_of(f"simclr-paper-{batch}"), *scores_of(f"dcl-paper-{batch}")]
        gain = ""
        if ours[0] and ours[2]:
            gain = f"{float(ours[2].split()[0]) - float(ours[0].split()[0]):+.1f}"
        if any(ours):
            rows.append([str(batch), *ours, gain, f"{simclr} / {dcl}", f"{dcl - simclr:+.1f}"])
    head = ["batch", "SimCLR knn", "linear-fast", "DCL knn", "linear-fast", "gain in knn"]
    head += ["paper, knn at 200 epochs", "gain"]
    return f"{where_measured(groups)}\n\n{table(head, rows)}"


def rule_section() -> str:
    """Return SiMo with K negatives, with and without EqCo's rule."""
    groups = runs_of("rule")
    if not groups:
        return "SiMo with fewer negatives has not been measured yet."
    rows = []
    for differences in sorted({differences for _, differences in groups}):
        for k in (4, 16, 255):
            cells = [
                cell
                for suffix in ("rule", "rule-own", "plain")
                for cell in scores_of(f"simo-{k}-{suffix}", differences)
            ]
            if any(cells):
                rows.append([str(k), *cells, differences])
    head = ["K", "with the rule: knn", "linear-fast", "a draw for each query: knn", "linear-fast"]
    head += ["without the rule: knn", "linear-fast", "changed values"]
    return f"{where_measured(groups)}\n\n{table(head, rows)}"


def validation_section() -> str:
    """Return the values that were tried on held-out train images."""
    rows = []
    for (_, differences), lines in runs_of("validation").items():
        first = lines[0]
        knn = mean_text(score_values(lines, "knn"))
        rows.append([entry_name(first), differences, str(first["epochs"]), knn, first["commit"]])
    return table(["run", "changed values", "epochs", "knn", "commit"], rows)


def readme_section() -> str:
    """Return README's table of methods."""
    rows = [
        [
            name + (f" ({differences})" if differences else ""),
            *(mean_text(score_values(lines, protocol)) for protocol in ("knn", "linear-fast")),
        ]
        for (name, differences), lines in methods().items()
    ]
    return table(["CIFAR-10, ResNet-18; 100 epochs if not given", "kNN", "linear (logistic)"], rows)


def throughput_section() -> str:
    """Return SimCLR against lightly by visit, and the last measurement of every recipe."""
    if not visits():
        return "Nothing has been measured yet."
    compared = []
    last = {}
    for visit in visits():
        if speeds := over_lightly(visit):
            ours, theirs, ratio = speeds
            numbers = [f"{ours:,.0f}", f"{theirs:,.0f}", f"**{ratio:.2f}**"]
            compared.append([visit["date"], visit["commit"], *numbers])
        for row in visit["rows"]:
            last[recipe_text(row["recipe"], row["set"])] = row, visit["commit"]
    rows = [
        [
            recipe,
            f"{row['ours']['images_per_second']:,.0f}",
            f"{row['bare']['ms']:.2f} ms",
            f"{100 * row['share']:.1f} %",
            f"{row['bare']['memory_gib']:.1f} GiB",
            commit,
        ]
        for recipe, (row, commit) in last.items()
    ]
    head = ["recipe", "images/s of `pretrain`", "bare step", "share of the bare speed"]
    machines = {f"{v['device']}, torch {v['torch']}, {v['cores']} cores" for v in visits()}
    against = table(["day", "commit", "ours", "lightly 1.6.0", "ratio"], compared)
    steps = table([*head, "GPU memory", "commit"], rows)
    return f"{', '.join(sorted(machines))}. SimCLR, images/s:\n\n{against}\n\n{steps}"


def breakdown_section() -> str:
    """Return the milliseconds of a step by kind of kernel, with one column per recipe."""
    last = {
        recipe_text(line["recipe"], line["set"]): line for line in json_lines("breakdown.jsonl")
    }
    if not last:
        return "The time of a step by kind of kernel has not been measured yet (`breakdown.py`)."
    kinds = dict.fromkeys(kind for line in last.values() for kind in line["ms"])
    rows = [[kind, *(f"{line['ms'].get(kind, 0):.2f}" for line in last.values())] for kind in kinds]
    rows.append(["all", *(f"{sum(line['ms'].values()):.2f}" for line in last.values())])
    return f"{where(list(last.values()))}\n\n{table(['ms of a step', *last], rows)}"


PAGES = {
    RESULTS: {
        "accuracy": accuracy_section,
        "settings": settings_section,
        "rule": rule_section,
        "tried": validation_section,
        "throughput": throughput_section,
        "breakdown": breakdown_section,
    },
    README: {"results": readme_section},
}


def updated(page: Path) -> str:
    """Return the text of a page with new content in every marked section."""
    text = page.read_text()
    for name, section in PAGES[page].items():
        start = f"<!-- {name} -->"
        end = f"<!-- end of {name} -->"
        if start not in text:
            sys.exit(f"{page.name} has no mark {start}")
        before, rest = text.split(start)
        text = f"{before}{start}\n{section()}\n{end}{rest.split(end)[1]}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, compare the pages")
    args = parser.parse_args()
    for page in PAGES:
        text = updated(page)
        if not args.check:
            page.write_text(text)
        elif text != page.read_text():
            sys.exit(f"{page.name} is older than results/: run benchmarks/tables.py")
    if not args.check:
        import pictures  # needs matplotlib, which --check does not

        pictures.draw()


if __name__ == "__main__":
    main()
