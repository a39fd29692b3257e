"""Write docs/claims.md: the verdicts on the papers' claims as short tables, details folded."""

import re
import textwrap
from collections.abc import Iterable
from typing import NamedTuple

from antipode.reproduction.item import Item, Law, Verdict
from claims_notes import NOTES

PAPERS = {
    "dcl": "DCL and DCLW (Yeh et al. 2022)",
    "eqco": "EqCo and SiMo (Zhu et al. 2020)",
    "adco": "AdCo (Hu et al. 2021)",
    "jcl": "JCL (Cai et al. 2020)",
    "msbreg": "MSBReg (Moon et al. 2022)",
}
NOT_RUN = "not run"
SYMBOLS = {"holds": "✓", "does not hold": "✗", "undecided": "?", NOT_RUN: "○"}
SHORT = 75  # characters of a cell with our numbers
# "74.27, ... 68.84: a difference of 5.43"
CHANGE = re.compile(r"^(?P<head>.*): (?P<kind>a (?:difference|loss|range|ratio) of) (?P<by>\S+)$")
NUMBER = r"-?\d[\d.]*(?:e[+-]?\d+)?"
NAMED = re.compile(rf"^(?P<name>.*?) ?(?P<value>{NUMBER})$")  # "SimCLR / 32 68.84"
POINT = re.compile(rf"{NUMBER} at {NUMBER}")  # a point of a curve


class Claim(NamedTuple):
    """A claim with its verdict.

    `seeds` is the number of runs behind the numbers that have the fewest, or 0 if some are missing.
    """

    name: str
    item: Item
    law: Law
    verdict: Verdict
    seeds: int

    @property
    def word(self) -> str:
        """The verdict in one or two words."""
        return self.verdict.word if self.seeds else NOT_RUN

    @property
    def shown(self) -> str:
        """The verdict as a symbol and a word."""
        return f"{SYMBOLS[self.word]} {self.word}"

    @property
    def note(self) -> str:
        """What we think of the claim. A note on another verdict is not shown."""
        verdict, text = NOTES.get((self.name, self.law.text), ("", ""))
        return text if verdict == self.word else ""


def page(claims: list[Claim]) -> str:
    """Return the text of docs/claims.md."""
    parts = [INTRODUCTION.strip(), summary(claims), HOW.strip()]
    for paper, title in PAPERS.items():
        own = [claim for claim in claims if claim.name.startswith(f"{paper}.")]
        judged = [claim for claim in own if claim.seeds]
        parts += [f"## {title}", table(judged), waiting(own)]
        names = dict.fromkeys(claim.name for claim in judged)
        for name in names:
            parts += section([claim for claim in judged if claim.name == name])
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(claims: list[Claim]) -> str:
    """Return a table of how many claims hold, by paper."""
    rows = [["paper", *(f"{symbol} {word}" for word, symbol in SYMBOLS.items())]]
    for paper, title in {**PAPERS, "": "all"}.items():
        own = [claim for claim in claims if claim.name.startswith(paper)]
        rows.append([title, *(str(sum(claim.word == word for claim in own)) for word in SYMBOLS)])
    return markdown(rows)


def table(claims: list[Claim]) -> str:
    """Return the table of the judged claims of a paper, headlines first and in bold."""
    if not claims:
        return "None of the claims of this paper has been checked."
    rows = [["verdict", "claim", "in the paper", "here", "item"]]
    for claim in sorted(claims, key=lambda claim: not claim.law.headline):
        bold = "**" if claim.law.headline else ""
        link = f"[{claim.name}](#{claim.name.replace('.', '').lower()})"
        seeds = f"{claim.seeds} seed{'' if claim.seeds == 1 else 's'}"
        text = f"{bold}{capital(claim.law.text)}{bold}"
        here = f"{short(claim.verdict)} ({seeds})"
        rows.append([claim.shown.replace(" ", "&nbsp;"), text, paper(claim.law), here, link])
    return markdown(rows)


def paper(law: Law) -> str:
    """Return where the paper makes a claim, with its numbers."""
    return ": ".join(part for part in (law.source, law.paper) if part)


def waiting(claims: list[Claim]) -> str:
    """Return the claims of a paper that lack runs, folded, by item."""
    absent = [claim for claim in claims if not claim.seeds]
    if not absent:
        return ""
    rows = [["claim", "in the paper", "item"]]
    rows += [[capital(claim.law.text), paper(claim.law), f"`{claim.name}`"] for claim in absent]
    return folded(f"Not run: {len(absent)} of {len(claims)} claims", markdown(rows))


def section(claims: list[Claim]) -> list[str]:
    """Return the part of one item: picture, what we think, and the numbers behind the verdicts."""
    name, item = claims[0].name, claims[0].item
    title = f"{capital(item.title)}. {item.question}"
    picture = f"![{item.title}: ours and the paper's](pictures/claims/{name}.png)"
    lines = [fill(f"- {claim.shown}: {claim.law.text}. {detail(claim)}", "  ") for claim in claims]
    command = f"Repeat it: `antipode reproduce {name} --scale small --seeds 3`."
    notes = [fill(f"**{capital(claim.law.text)}.** {claim.note}") for claim in claims if claim.note]
    numbers = folded("All numbers, and the command", "\n".join(lines) + f"\n\n{command}")
    return [f"### {name}", fill(title), picture, *notes, numbers]


def detail(claim: Claim) -> str:
    """Return the numbers behind a verdict, and by how much the claim holds or fails."""
    margin, interval = claim.verdict.margin, claim.verdict.interval
    side = "Above" if margin > 0 else "Below"
    spread = f" ± {interval:.2g}" if interval else ""
    return f"{capital(claim.verdict.text)}. {side} the limit by {abs(margin):.2g}{spread}."


# Short texts


def short(verdict: Verdict) -> str:
    """Return the numbers behind a verdict in a few words."""
    text = verdict.text
    spread = f" ± {verdict.interval:.2f}" if verdict.interval else ""
    change = CHANGE.match(text)
    if change:
        head = names_and_values(change["head"])
        return f"{head}: {change['kind'].removeprefix('a ')} {change['by']}{spread}"
    losses = re.findall(rf"a loss of ({NUMBER})", text)
    if len(losses) > 1:
        return f"losses of {' and '.join(losses)}{spread}"
    points = POINT.findall(text)
    if len(points) > 2:
        return f"{points[0]} to {points[-1]}"
    return text if len(text) <= SHORT else textwrap.shorten(text, SHORT, placeholder=" …")


def names_and_values(text: str) -> str:
    """Return "name value" pairs without the parts that all names share.

    "A / x / 32 74.27, A / y / 32 68.84" becomes "x 74.27, y 68.84", and "A / 16 68.1, A / 256 68.0"
    becomes "68.1 at 16, 68.0 at 256". Of many values, only the smallest and the largest are kept.
    """
    found = [NAMED.match(part) for part in re.split(r"(?<=\d), ", text)]
    pairs = [(match["name"].split(" / "), match["value"]) for match in found if match]
    if len(pairs) < len(found):
        return text if len(text) <= SHORT else textwrap.shorten(text, SHORT, placeholder=" …")
    if len(pairs) > 3:
        values = sorted((value for _, value in pairs), key=float)
        return f"{values[0]} to {values[-1]}"
    shared = set.intersection(*({*parts} for parts, _ in pairs)) if len(pairs) > 1 else set()
    named = [([part for part in parts if part not in shared], value) for parts, value in pairs]
    return ", ".join(
        f"{value} at {own[0]}"
        if len(own) == 1 and re.fullmatch(NUMBER, own[0])
        else " ".join([*own, value])
        for own, value in named
    )


def capital(text: str) -> str:
    """Return a text that begins with a capital letter, unless it begins with a symbol like q_B."""
    return text if re.match(r"\w+_|kNN", text) else text[:1].upper() + text[1:]


def fill(text: str, indent: str = "") -> str:
    """Return a text in lines of at most 100 characters."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, 100, subsequent_indent=indent, **options)  # type: ignore[arg-type]


def folded(title: str, text: str) -> str:
    """Return a part that readers unfold, on GitHub and on the documentation site."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


def markdown(rows: Iterable[list[str]]) -> str:
    """Return a Markdown table. The first row is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in lines
    )


INTRODUCTION = """
# Claims

This page lists what the five papers claim, what we measured, and whether each claim holds. It is
made by `python benchmarks/claims_page.py` from the runs in `benchmarks/results/claims.jsonl`.

All numbers here are from CIFAR-10 with ResNet-18 on one H200, and from runs of 50 epochs unless a
row states another number. The papers trained on ImageNet, ImageNet-100, STL-10 and CIFAR-10, mostly
for 200 epochs. A claim that does not hold here may hold at its own scale, and the reverse.
`dcl.fig3` and `dcl.table4` report logistic regression; the other accuracies of DCL are kNN.

![The headline claims of the five papers](pictures/claims/headlines.png)
"""

HOW = """
How a claim is judged:

- A gain that a paper reports holds if at least half of it is found here.
- Where a paper reports that something costs nothing or little, up to one point more is accepted.
  Two runs that differ only in their seeds differ by less than .83 points in 95 % of cases.
- A network that is not 10 points better than an untrained one satisfies no claim about accuracy.
- The margin of a claim is the distance of our number to the limit. A claim is undecided if the 95 %
  interval of its margin contains zero. For example, a gain of 1.79 ± 0.53 is undecided if the paper
  reports 2.8, because the limit is then 1.4. The interval of accuracies (and of average precision)
  comes from the spread over the seeds of the runs that are compared, together with a standard
  deviation of .3 points, which counts like ten further degrees of freedom. Seeds that vary more
  than twice as much count alone. Numbers of other kinds have no interval with one seed.
- If a claim compares one number with several others, the worst comparison decides. The interval is
  then wider (Bonferroni), since the worst of several comparisons fails more often by chance.
- A claim for which some runs are missing is not judged.
- Several claims use the same runs. For example, DCL against SimCLR at batch size 256 is in tables
  1, 2 and 3 and in figure 4 of DCL. So the verdicts are not independent of each other.

In the tables, bold claims are the headlines of their papers. The number after ± is half the width
of the 95 % interval. The link in the last column leads to the picture, to all numbers and to the
command that repeats the item.
"""
