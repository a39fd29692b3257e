"""The notes of the page as HTML: warnings at the top, what is missing folded at the end."""

import html
from collections.abc import Sequence

from antipode.names import printable
from antipode.reporting.pictures import Album
from antipode.reporting.warnings import Note, concerns
from antipode.runs.run import Run
from antipode.wording import capital

Notes = dict[Note, list[str]]  # each distinct note with the labels of its runs


def collect_notes(runs: Sequence[Run], albums: Sequence[Album]) -> Notes:
    """Return each distinct note with the labels of its runs."""
    labels: Notes = {}
    for run, album in zip(runs, albums, strict=True):
        for note in [*concerns(run), *_picture_notes(album)]:
            labels.setdefault(note, []).append(run.label)
    return labels


def _picture_notes(album: Album) -> list[Note]:
    """Return notes on pictures that are absent and on images that could not be used."""
    notes = [
        Note(False, f"no {parts}", f"no {parts}: {reason}")
        for parts, reason in _merged(album.absent).items()
    ]
    if album.skipped:
        first = "; ".join(album.skipped[:3]) + ("; ..." if len(album.skipped) > 3 else "")
        # a page looks at some thousands of images at most, so there may be more of them
        count = f"{len(album.skipped):,} image" + ("" if len(album.skipped) == 1 else "s")
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


def warnings_html(notes: Notes, runs: int) -> str:
    """Return the section of warnings, or an empty text if there are none."""
    items = _items({note: names for note, names in notes.items() if note.grave}, runs)
    if not items:
        return ""
    return f'<section id="notes"><h2>Warnings</h2><ul class="notes">{items}</ul></section>'


def gaps_html(notes: Notes, runs: int) -> str:
    """Return what is missing, folded, with the commands that add it."""
    gaps = {note: names for note, names in notes.items() if not note.grave}
    if not gaps:
        return ""
    return (
        '<details class="gaps"><summary>What could be added to this page '
        f'({len(gaps)})</summary><ul class="notes">{_items(gaps, runs)}</ul></details>'
    )


def _items(notes: Notes, runs: int) -> str:
    """Return list items. If there are many notes of a kind, all but the first are folded."""
    kinds: dict[tuple[bool, str], list[str]] = {}
    for note, names in notes.items():
        kinds.setdefault((note.grave, note.kind), []).append(_sentence(note, names, runs))
    items: list[str] = []
    for (grave, _), sentences in kinds.items():
        kind = "grave" if grave else "gap"
        items += [f'<li class="{kind}">{text}</li>' for text in _folded(sentences)]
    return "".join(items)


def _folded(sentences: list[str]) -> list[str]:
    """Return sentences of one kind; of more than three, all but the first are folded into it."""
    if len(sentences) <= 3:
        return sentences
    rest = "".join(f"<p>{text}</p>" for text in sentences[1:])
    summary = f"<summary>and {len(sentences) - 1} more like it</summary>"
    return [f"{sentences[0]}<details>{summary}{rest}</details>"]


def _sentence(note: Note, names: Sequence[str], runs: int) -> str:
    """Return a note as HTML. If the page has several runs, the runs of the note are named."""
    whose = ""
    if runs > 1:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        whose = "all runs" if len(names) == runs else ", ".join(names[:4]) + more
    command = f" <code>{_safe(note.command)}</code>" if note.command else ""
    labels = f' <span class="whose">{_safe(whose)}</span>' if whose else ""
    return f"{_safe(capital(note.text))}.{command}{labels}"


def _safe(text: str) -> str:
    return html.escape(printable(text))
