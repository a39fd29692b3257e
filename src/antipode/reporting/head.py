"""The head of the page, there without a script: name, sentence, the number that matters, what to know first."""

import html
import statistics
from collections.abc import Sequence
from typing import Any

from antipode.reporting import provenance as facts
from antipode.reporting import seed_groups as spread
from antipode.reporting.gather import Record
from antipode.reporting.pictures import Album
from antipode.reporting.seed_groups import Column, Group
from antipode.reporting.warnings import Note, concerns

BRIEF = 24  # characters of a setting


def title(records: Sequence[Record]) -> str:
    """The name of the page."""
    return records[0].name if len(records) == 1 else f"{len(records)} runs compared"


def hero(
    records: Sequence[Record],
    albums: Sequence[Album],
    settings: Sequence[Group],
    columns: Sequence[Column],
) -> str:
    """The head of the page: name, one sentence, the number that matters, and a few facts beside it."""
    if len(records) == 1:
        text = facts.sentence(records[0], albums[0].images)
        eyebrow = f"{records[0].method} on {records[0].value('data.name', 'no data')}"
    else:
        text = _compared(records, settings)
        places = list(dict.fromkeys(str(one.value("data.name")) for one in records if one.recipe))
        eyebrow = f"comparison on {places[0]}" if len(places) == 1 else "comparison"
    return (
        f'<div class="lead"><p class="eyebrow">{_safe(eyebrow)}</p><h1>{_safe(title(records))}</h1>'
        f'<p class="what">{_safe(text)}</p></div>'
        f'<div class="result">{_headline(records, settings, columns)}</div>{_facts(records)}'
    )


def _compared(records: Sequence[Record], settings: Sequence[Group]) -> str:
    methods = list(dict.fromkeys(one.method for one in records if one.recipe))
    foreign = sum(not one.recipe for one in records)
    named = methods[:6] + ([f"{len(methods) - 6} more methods"] if len(methods) > 6 else [])
    named += [f"{_count(foreign, 'network')} that no run here has trained"] if foreign else []
    listed = ", ".join(named[:-1]) + (" and " if len(named) > 1 else "") + named[-1]
    return f"{_count(len(settings), 'setting')} of {listed}. Runs that differ only by their seed are one setting."


def _headline(
    records: Sequence[Record], settings: Sequence[Group], columns: Sequence[Column]
) -> str:
    main = spread.headline(columns, records)
    if main is None:
        return '<p class="score none">No score yet: <code>antipode evaluate</code> adds one.</p>'
    column, per = (
        columns[main],
        [spread.cells(group, records, columns).get(main) for group in settings],
    )
    best, cell = max(
        ((at, cell) for at, cell in enumerate(per) if cell), key=lambda pair: pair[1]["mean"]
    )
    scored = sum(cell is not None for cell in per)
    percent = column.unit.startswith("%")
    unit, rest = column.unit.partition(" ")[::2] if percent else ("", column.unit)
    plus = (
        ""
        if cell["std"] is None
        else f'<span class="spread"> ± {_figure(cell["std"], percent)}</span>'
    )
    who = f"{settings[best].label}, the highest of {scored} settings. " if scored > 1 else ""
    seeds = _count(cell["n"], "seed") if cell["n"] > 1 else "one seed, so no spread"
    which = f"mean ± standard deviation over {seeds}" if cell["n"] > 1 else seeds
    how, mean = ", ".join(_brief(spread.settings(column, records))), _figure(cell["mean"], percent)
    return (
        f'<p class="score"><strong>{mean}<span class="unit">{_safe(unit)}</span></strong>{plus}</p>'
        f'<p class="by"><b>{_safe(f"{column.name} {rest}".strip())}</b> on {_safe(column.data)} {_safe(column.split)}, '
        f"{column.n:,} images{_safe(f' ({how})' if how else '')}. {_safe(who)}{which[0].upper()}{which[1:]}.</p>"
    )


def _brief(settings: dict[str, Any]) -> list[str]:
    """The settings that fit a line; all of them stand with the scores below."""
    texts = [f"{key} {spread.plain(value)}" for key, value in settings.items()]
    return [text for text in texts if len(text) <= BRIEF][:5]


def _facts(records: Sequence[Record]) -> str:
    """A few numbers of a single run; of many they stand in the table."""
    if len(records) > 1 or not records[0].recipe:
        return ""
    one = records[0]
    # as the bar shows it: the difference that AdCo minimises has no meaning, its contrast has
    losses = [row.get("contrast", row.get("loss")) for row in one.rows]
    last = next((loss for loss in reversed(losses) if loss is not None), None)
    speeds = [row["images_per_second"] for row in one.rows if row.get("images_per_second")]
    shown = {
        "network": str(one.value("backbone.name")),
        "epochs": f"{one.epochs_done} of {one.value('train.epochs')}",
        "last loss": "-" if last is None else f"{last:.3f}",
        "images a second": f"{statistics.median(speeds):,.0f}" if speeds else "-",
        "time training": _time(one.seconds),
        "device": str(one.env.get("device", "-")),
    }
    items = "".join(
        f"<div><dt>{_safe(name)}</dt><dd>{_safe(value)}</dd></div>" for name, value in shown.items()
    )
    return f'<dl class="facts">{items}</dl>'


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def noted(records: Sequence[Record], albums: Sequence[Album]) -> dict[Note, list[str]]:
    """What is worth knowing, each sentence once, with the runs it is true of; grave ones first."""
    found: dict[Note, list[str]] = {}
    for one, album in zip(records, albums, strict=True):
        for note in [*concerns(one), *_left_out(album)]:
            found.setdefault(note, []).append(one.name)
    return dict(sorted(found.items(), key=lambda item: not item[0].grave))


def _left_out(album: Album) -> list[Note]:
    notes = [
        Note(False, f"no {part}", f"no {part}: {why}")
        for part, why in _merged(album.absent).items()
    ]
    if album.skipped:
        first = "; ".join(album.skipped[:3]) + ("; ..." if len(album.skipped) > 3 else "")
        lost = _count(len(album.skipped), "image")  # a page looks at some thousands at most
        notes.append(
            Note(
                True,
                "skipped",
                f"{lost} could not be used, of those that this page looked at: {first}",
            )
        )
    return notes


def _merged(absent: dict[str, str]) -> dict[str, str]:
    """Pictures that are absent for one reason in one line."""
    reasons: dict[str, list[str]] = {}
    for part, why in absent.items():
        reasons.setdefault(why, []).append(part)
    return {
        (", ".join(parts) if len(parts) < 5 else "pictures"): why for why, parts in reasons.items()
    }


def worth(notes: dict[Note, list[str]], runs: int) -> str:
    """The list of what is worth knowing; of many notes of one kind the first is shown and the rest can be unfolded."""
    if not notes:
        return '<p class="fine">Nothing is missing and nothing went wrong.</p>'
    kinds: dict[tuple[bool, str], list[str]] = {}
    for note, names in notes.items():
        kinds.setdefault((note.grave, note.kind), []).append(_sentence(note, names, runs))
    items = []
    for (grave, _), sentences in kinds.items():
        look, mark = ("grave", "warning") if grave else ("gap", "missing")
        shown, folded = (sentences[:1], sentences[1:]) if len(sentences) > 3 else (sentences, [])
        for at, text in enumerate(shown):
            rest = "".join(f"<p>{one}</p>" for one in folded) if at == 0 else ""
            more = (
                f"<details><summary>and {len(folded)} more like it</summary>{rest}</details>"
                if rest
                else ""
            )
            items.append(
                f'<li class="{look}"><b class="mark">{mark}</b><div>{text}{more}</div></li>'
            )
    return f'<ul class="notes">{"".join(items)}</ul>'


def _sentence(note: Note, names: Sequence[str], runs: int) -> str:
    """A note as HTML, with the runs it is about where there are several."""
    whose = ""
    if runs > 1:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        whose = "all runs" if len(names) == runs else ", ".join(names[:4]) + more
    command = f" <code>{_safe(note.command)}</code>" if note.command else ""
    run = f' <span class="whose">{_safe(whose)}</span>' if whose else ""
    return f"{_safe(note.text[:1].upper() + note.text[1:])}.{command}{run}"


def _figure(value: float, percent: bool) -> str:
    """A percentage to a tenth; a distance, say, may be small."""
    return f"{value:.1f}" if percent else f"{value:.3g}"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def _safe(text: str) -> str:
    return html.escape(text)
