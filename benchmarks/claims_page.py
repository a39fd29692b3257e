"""Judge the papers' claims by the lines in results/claims.jsonl, and write docs/claims.md.

    python benchmarks/claims_page.py            # write the page, pictures and claims-judged.jsonl
    python benchmarks/claims_page.py --check    # exit with status 1 if the page differs from them

results/claims-judged.jsonl has one line for each claim: its verdict, the numbers and the seeds.
What we think about a claim is in claims_notes.py. claims_text.py writes the page, and
claims_pictures.py draws one picture for each item that has runs, and one of the headline claims.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from antipode.reproduction.catalog import items
from antipode.reproduction.collect import collect
from antipode.reproduction.item import REFERENCE, Cells, Law, Trial, Verdict
from antipode.reproduction.make import check_laws
from antipode.reproduction.plan import make_plan
from claims import DONE, SCALE, SEEDS, depends, read_lines, restore
from claims_text import Claim, page, summary

HERE = Path(__file__).parent
JUDGED = HERE / "results" / "claims-judged.jsonl"
PAGE = HERE.parent / "docs" / "claims.md"
PICTURES = HERE.parent / "docs" / "pictures" / "claims"


def gather(lines: Mapping[str, Mapping[str, Any]]) -> dict[str, Cells]:
    """Return the numbers of each item at scale small, from the lines of finished runs."""
    out = Path(tempfile.mkdtemp(prefix="claims-"))
    restore(lines, out)
    found = {}
    for name in items():
        plan = make_plan(name, SCALE, out, seeds=SEEDS)
        missing = {run.folder for run in plan.runs if run.folder.name not in lines}
        found[name], _ = collect(plan, missing)
    shutil.rmtree(out)
    return found


def judge(found: Mapping[str, Cells]) -> Iterator[Claim]:
    """Yield all claims of scale small, judged by the numbers of each item."""
    for name, item in items().items():
        trials = item.grids[SCALE].trials
        for law, verdict in check_laws(item, SCALE, found[name]):
            seeds = seeds_behind(law, verdict, trials, found[name])
            yield Claim(name, item, law, verdict, seeds)


def seeds_behind(law: Law, verdict: Verdict, trials: tuple[Trial, ...], cells: Cells) -> int:
    """Return the smallest number of seeds of the places that a law reads.

    It is 0 if some of the places have no number, also if the law could be judged by the others.
    """
    if math.isnan(verdict.margin) or lacking(law, trials, cells):
        return 0
    trained = {place: values for place, values in cells.items() if place[0] != REFERENCE}
    return min(len(values) for place, values in trained.items() if depends(law, cells, place))


def lacking(law: Law, trials: tuple[Trial, ...], cells: Cells) -> bool:
    """Return True if a law would read a place of the grid that has no number yet.

    A missing place gets a number, and a missing curve the points of another one in its panel. The
    law reads them if its verdict changes with them.
    """
    added: Cells = {}
    for trial in trials:
        for measure in trial.measures:
            panel, row, column = trial.place(measure)
            if measure.kind != "metric" and not measure.pick.startswith(("curves", "histograms")):
                added |= {} if (panel, row, column) in cells else {(panel, row, column): [80.0]}
            elif not any(place[:2] == (panel, row) for place in cells):
                added |= {(panel, row, place[2]): [80.0] for place in cells if place[0] == panel}
    whole = {**cells, **added}
    return any(depends(law, whole, place) for place in added)


def record(claim: Claim) -> dict[str, Any]:
    """Return the line of a claim."""
    judged = claim.seeds > 0
    return {
        "item": claim.name,
        "claim": claim.law.text,
        "headline": claim.law.headline,
        "source": claim.law.source,
        "paper": claim.law.paper,
        "verdict": claim.word,
        "found": claim.verdict.text if judged else "",
        "margin": round(claim.verdict.margin, 4) if judged else None,
        "interval": round(claim.verdict.interval, 4) if judged else None,
        "seeds": claim.seeds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare the page with results/")
    args = parser.parse_args()
    found = gather(read_lines(DONE))
    claims = list(judge(found))
    text = page(claims)
    if args.check:
        sys.exit(text != PAGE.read_text())
    PAGE.write_text(text)
    JUDGED.write_text("".join(json.dumps(record(claim)) + "\n" for claim in claims))
    from claims_pictures import draw_all  # needs matplotlib, which --check does not

    draw_all(claims, found, PICTURES)
    print(summary(claims))


if __name__ == "__main__":
    main()
