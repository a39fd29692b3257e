"""The top of the page as HTML, readable without scripts: title, text, main score and notes."""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from antipode.names import printable
from antipode.reporting import provenance, seed_groups
from antipode.reporting.pictures import Album
from antipode.reporting.seed_groups import Column, Group
from antipode.reporting.summary import epochs_done, training_seconds
from antipode.reporting.warnings import Note, concerns
from antipode.runs.log import Log
from antipode.runs.run import Run

BRIEF = 24  # maximum number of characters of a setting beside the main score


def title(runs: Sequence[Run]) -> str:
    """Return the title of the page."""
    return runs[0].label if len(runs) == 1 else f"{len(runs)} runs compared"


def hero(
    runs: Sequence[Run],
    albums: Sequence[Album],
    groups: Sequence[Group],
    columns: Sequence[Column],
) -> str:
    """Return the first block of the page: title, description, main score and a few facts."""
    if len(runs) == 1:
        text = provenance.sentence(runs[0], albums[0].images)
        eyebrow = f"{runs[0].method} on {runs[0].value('data.name', 'no data')}"
    else:
        text = _comparison(runs, groups)
        data_sets = list(dict.fromkeys(str(run.value("data.name")) for run in runs if run.values))
        eyebrow = f"comparison on {data_sets[0]}" if len(data_sets) == 1 else "comparison"
    return (
        f'<div class="lead"><p class="eyebrow">{_safe(eyebrow)}</p><h1>{_safe(title(runs))}</h1>'
        f'<p class="what">{_safe(text)}</p></div>'
        f'<div class="result">{_headline(runs, groups, columns)}</div>{_facts(runs)}'
    )


def _comparison(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """Return a description of several runs."""
    methods = list(dict.fromkeys(run.method for run in runs if run.values))
    foreign = sum(not run.values for run in runs)
    parts = methods[:6] + ([f"{len(methods) - 6} more methods"] if len(methods) > 6 else [])
    parts += [f"{_count(foreign, 'network')} that no run here has trained"] if foreign else []
    listed = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    settings = _count(len(groups), "setting")
    return f"{settings} of {listed}. Runs that differ only by their seed are one setting."


def _headline(runs: Sequence[Run], groups: Sequence[Group], columns: Sequence[Column]) -> str:
    """Return the main score of the best setting, and how it was obtained."""
    main = seed_groups.headline(columns, runs)
    if main is None:
        return '<p class="score none">No score yet: run <code>antipode evaluate</code>.</p>'
    column = columns[main]
    cells = [seed_groups.cells(group, runs, columns).get(main) for group in groups]
    scored = {at: cell for at, cell in enumerate(cells) if cell}
    best = max(scored, key=lambda at: scored[at]["mean"])
    mean, deviation, n = (scored[best][name] for name in ("mean", "std", "n"))
    percent = column.unit.startswith("%")
    unit, rest = column.unit.partition(" ")[::2] if percent else ("", column.unit)
    spread = "" if deviation is None else f" ± {_figure(deviation, percent)}"
    spread = f'<span class="spread">{spread}</span>' if spread else ""
    setting = (
        f"{groups[best].label}, the highest of {len(scored)} settings. " if len(scored) > 1 else ""
    )
    seeds = f"Mean ± standard deviation over {n} seeds" if n > 1 else "One seed, so no spread"
    how = ", ".join(_brief(seed_groups.settings(column, runs)))
    return (
        f'<p class="score"><strong>{_figure(mean, percent)}<span class="unit">{_safe(unit)}</span>'
        f"</strong>{spread}</p>"
        f'<p class="by"><b>{_safe(f"{column.name} {rest}".strip())}</b> on {_safe(column.data)} '
        f"{_safe(column.split)}, {column.n:,} images{_safe(f' ({how})' if how else '')}. "
        f"{_safe(setting)}{seeds}.</p>"
    )


def _brief(settings: dict[str, Any]) -> list[str]:
    """Return the settings of a score that fit on a line. The table of scores has all of them."""
    texts = [f"{key} {seed_groups.plain(value)}" for key, value in settings.items()]
    return [text for text in texts if len(text) <= BRIEF][:5]


def _facts(runs: Sequence[Run]) -> str:
    """Return a few numbers of a single run. For several runs, the table of runs has them."""
    if len(runs) > 1 or not runs[0].values:
        return ""
    run = runs[0]
    # AdCo minimises a difference that has no meaning by itself, so its contrastive term is shown
    last = _last(run.log)
    speeds = run.log.column("images_per_second")
    speeds = speeds[speeds > 0]
    facts = {
        "backbone": str(run.value("backbone.name")),
        "epochs": f"{epochs_done(run)} of {run.value('train.epochs')}",
        "last loss": "-" if last is None else f"{last:.3f}",
        "images per second": f"{np.median(speeds):,.0f}" if len(speeds) else "-",
        "training time": _time(training_seconds(run)),
        "device": str(run.environment.get("device", "-")),
    }
    items = "".join(
        f"<div><dt>{_safe(name)}</dt><dd>{_safe(value)}</dd></div>" for name, value in facts.items()
    )
    return f'<dl class="facts">{items}</dl>'


def _last(log: Log) -> float | None:
    """Return the last contrastive term or, on lines without it, loss."""
    found = [log.series[name] for name in ("contrast", "loss") if name in log.series]
    latest = max(found, key=lambda part: part.lines[-1], default=None)  # of two, the first one
    return None if latest is None else float(latest.values[-1])


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def collect_notes(runs: Sequence[Run], albums: Sequence[Album]) -> dict[Note, list[str]]:
    """Return each distinct note with the labels of its runs, grave notes first."""
    labels: dict[Note, list[str]] = {}
    for run, album in zip(runs, albums, strict=True):
        for note in [*concerns(run), *_picture_notes(album)]:
            labels.setdefault(note, []).append(run.label)
    return dict(sorted(labels.items(), key=lambda item: not item[0].grave))


def _picture_notes(album: Album) -> list[Note]:
    """Return notes on pictures that are absent and on images that could not be used."""
    notes = [
        Note(False, f"no {parts}", f"no {parts}: {reason}")
        for parts, reason in _merged(album.absent).items()
    ]
    if album.skipped:
        first = "; ".join(album.skipped[:3]) + ("; ..." if len(album.skipped) > 3 else "")
        # a page looks at some thousands of images at most, so there may be more of them
        count = _count(len(album.skipped), "image")
        text = f"{count} could not be used, among those that this page looked at: {first}"
        notes.append(Note(True, "skipped", text))
    return notes


def _merged(absent: dict[str, str]) -> dict[str, str]:
    """Return reasons by picture, with the pictures that are absent for the same reason as one."""
    reasons: dict[str, list[str]] = {}
    for part, reason in absent.items():
        reasons.setdefault(reason, []).append(part)
    return {
        (", ".join(parts) if len(parts) < 5 else "pictures"): reason
        for reason, parts in reasons.items()
    }


def notes_html(notes: dict[Note, list[str]], runs: int) -> str:
    """Return the list of notes. If there are many of a kind, all but the first are folded."""
    if not notes:
        return '<p class="fine">No warnings, and no results are missing.</p>'
    kinds: dict[tuple[bool, str], list[str]] = {}
    for note, names in notes.items():
        kinds.setdefault((note.grave, note.kind), []).append(_sentence(note, names, runs))
    items: list[str] = []
    for (grave, _), sentences in kinds.items():
        if len(sentences) > 3:
            rest = "".join(f"<p>{text}</p>" for text in sentences[1:])
            summary = f"<summary>and {len(sentences) - 1} more like it</summary>"
            items.append(_item(grave, f"{sentences[0]}<details>{summary}{rest}</details>"))
        else:
            items += [_item(grave, text) for text in sentences]
    return f'<ul class="notes">{"".join(items)}</ul>'


def _item(grave: bool, content: str) -> str:
    """Return a list item with a mark for its kind."""
    kind, mark = ("grave", "warning") if grave else ("gap", "missing")
    return f'<li class="{kind}"><b class="mark">{mark}</b><div>{content}</div></li>'


def _sentence(note: Note, names: Sequence[str], runs: int) -> str:
    """Return a note as HTML. If the page has several runs, the runs of the note are named."""
    whose = ""
    if runs > 1:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        whose = "all runs" if len(names) == runs else ", ".join(names[:4]) + more
    command = f" <code>{_safe(note.command)}</code>" if note.command else ""
    labels = f' <span class="whose">{_safe(whose)}</span>' if whose else ""
    return f"{_safe(note.text[:1].upper() + note.text[1:])}.{command}{labels}"


def _figure(value: float, percent: bool) -> str:
    """Return a percentage with one decimal, and other values with three significant digits."""
    return f"{value:.1f}" if percent else f"{value:.3g}"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def _safe(text: str) -> str:
    """Return a text that is neither markup nor able to reorder the text around it."""
    return html.escape(printable(text))
