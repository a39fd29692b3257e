"""Judge the papers' claims by the lines in results/claims.jsonl, and write docs/claims.md.

    python benchmarks/claims_page.py            # write the page and claims-judged.jsonl
    python benchmarks/claims_page.py --check    # exit with status 1 if the page differs from them

results/claims-judged.jsonl has one line for each claim: its verdict, the numbers and the seeds.
What we think about a claim is in claims_notes.py.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from antipode.reproduction.catalog import items
from antipode.reproduction.collect import collect
from antipode.reproduction.item import REFERENCE, Cells, Law, Verdict
from antipode.reproduction.make import check_laws
from antipode.reproduction.plan import make_plan
from claims import DONE, SCALE, SEEDS, depends, read_lines, restore
from claims_notes import NOTES

HERE = Path(__file__).parent
JUDGED = HERE / "results" / "claims-judged.jsonl"
PAGE = HERE.parent / "docs" / "claims.md"
PAPERS = {
    "dcl": "DCL and DCLW (Yeh et al. 2022)",
    "eqco": "EqCo and SiMo (Zhu et al. 2020)",
    "adco": "AdCo (Hu et al. 2021)",
    "jcl": "JCL (Cai et al. 2020)",
    "msbreg": "MSBReg (Moon et al. 2022)",
}
NOT_RUN = "not run"


class Claim(NamedTuple):
    """A claim with its verdict.

    `seeds` is the number of runs behind the numbers that have the fewest, or 0 if some are missing.
    """

    item: str
    law: Law
    verdict: Verdict
    seeds: int

    @property
    def word(self) -> str:
        """The verdict in one or two words."""
        return self.verdict.word if self.seeds else NOT_RUN


def judge(lines: Mapping[str, Mapping[str, Any]]) -> Iterator[Claim]:
    """Yield all claims of scale small, judged by the lines of finished runs."""
    out = Path(tempfile.mkdtemp(prefix="claims-"))
    restore(lines, out)
    for name, item in items().items():
        plan = make_plan(name, SCALE, out, seeds=SEEDS)
        missing = {run.folder for run in plan.runs if run.folder.name not in lines}
        cells, _ = collect(plan, missing)
        for law, verdict in check_laws(item, SCALE, cells):
            yield Claim(name, law, verdict, seeds_behind(law, verdict, cells))
    shutil.rmtree(out)


def seeds_behind(law: Law, verdict: Verdict, cells: Cells) -> int:
    """Return the smallest number of seeds of the places that a law reads, 0 if some are missing."""
    if math.isnan(verdict.margin):
        return 0
    trained = {place: values for place, values in cells.items() if place[0] != REFERENCE}
    return min(len(values) for place, values in trained.items() if depends(law, cells, place))


def record(claim: Claim) -> dict[str, Any]:
    """Return the line of a claim."""
    judged = claim.seeds > 0
    return {
        "item": claim.item,
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


# The page


def page(claims: list[Claim]) -> str:
    """Return the text of docs/claims.md."""
    parts = [INTRODUCTION.strip(), summary(claims)]
    for paper, title in PAPERS.items():
        own = [claim for claim in claims if claim.item.startswith(f"{paper}.")]
        parts += [f"## {title}", table(own), notes(own)]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(claims: list[Claim]) -> str:
    """Return a table of how many claims hold, by paper."""
    words = ("holds", "does not hold", "undecided", NOT_RUN)
    rows = [["paper", *words]]
    for paper, title in {**PAPERS, "": "all"}.items():
        own = [claim for claim in claims if claim.item.startswith(paper)]
        rows.append([title, *(str(sum(claim.word == word for claim in own)) for word in words)])
    return markdown(rows)


def table(claims: list[Claim]) -> str:
    """Return the table of a paper. Headline claims are bold."""
    rows = [["claim", "in the paper", "item", "here", "seeds", "verdict"]]
    for claim in claims:
        bold = "**" if claim.law.headline else ""
        paper = ": ".join(part for part in (claim.law.source, claim.law.paper) if part)
        here = claim.verdict.text if claim.seeds else ""
        text = f"{bold}{claim.law.text}{bold}"
        rows.append([text, paper, f"`{claim.item}`", here, str(claim.seeds or ""), claim.word])
    return markdown(rows)


def notes(claims: list[Claim]) -> str:
    """Return what we think about the claims of a paper, as a list."""
    lines = []
    for claim in claims:
        note = NOTES.get((claim.item, claim.law.text))
        if note and claim.seeds:
            text = f"- **{claim.law.text}** (`{claim.item}`, {claim.word}): {note}"
            lines.append(textwrap.fill(text, 100, subsequent_indent="  "))
    return "\n".join(lines)


def markdown(rows: list[list[str]]) -> str:
    """Return a Markdown table. The first row is the head."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in lines
    )


INTRODUCTION = """
# Claims

This page lists what the five papers claim, what we measured, and whether each claim holds. It is
made by `python benchmarks/claims_page.py` from the runs in `benchmarks/results/claims.jsonl`.

All numbers here are from CIFAR-10 with ResNet-18 and 50 epochs, on one H200. The papers trained on
ImageNet, ImageNet-100, STL-10 and CIFAR-10, mostly for 200 epochs. So a claim that does not hold
here may hold at its own scale, and the other way round.

How a claim is judged:

- A gain that a paper reports holds if at least half of it is found here.
- Where a paper reports that something costs nothing or little, up to one point more is accepted.
  Two runs that differ only in their seeds differ by less than .83 points in 95 % of cases.
- A network that is not 10 points better than an untrained one satisfies no claim about accuracy.
- A claim is undecided if the 95 % interval of its margin contains zero. The interval comes from the
  spread over seeds. With one seed it assumes a standard deviation of .3 points.

Bold claims are the headlines of their papers. `antipode reproduce ITEM --scale small` repeats an
item.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare the page with results/")
    args = parser.parse_args()
    claims = list(judge(read_lines(DONE)))
    text = page(claims)
    if args.check:
        sys.exit(text != PAGE.read_text())
    PAGE.write_text(text)
    JUDGED.write_text("".join(json.dumps(record(claim)) + "\n" for claim in claims))
    print(summary(claims))


if __name__ == "__main__":
    main()
