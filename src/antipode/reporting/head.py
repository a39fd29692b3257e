"""The top of the page as HTML, readable without scripts: title, verdict, condition, settings."""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from antipode.evaluation.condition import Condition, condition
from antipode.evaluation.headline import Verdict, percent, verdict
from antipode.evaluation.score import OVERLAP
from antipode.json_text import number
from antipode.names import printable
from antipode.reporting import provenance, seed_groups
from antipode.reporting.pictures import Album
from antipode.reporting.seed_groups import Column, Group, Main
from antipode.reporting.summary import command_path, epochs_done, training_seconds
from antipode.runs.run import Run
from antipode.wording import capital, final_loss


def title(runs: Sequence[Run]) -> str:
    """Return the title of the page."""
    return runs[0].label if len(runs) == 1 else f"{len(runs)} runs compared"


def hero(
    runs: Sequence[Run],
    albums: Sequence[Album],
    groups: Sequence[Group],
    columns: Sequence[Column],
) -> str:
    """Return the first block of the page: title, verdict, condition, and folded settings."""
    main = seed_groups.main_score(runs, groups, columns)
    if len(runs) == 1:
        about = provenance.sentence(runs[0], albums[0].images)
        eyebrow = _subject(runs[0])
    else:
        about = _comparison(runs, groups)
        data_sets = list(dict.fromkeys(str(run.value("data.name")) for run in runs if run.values))
        eyebrow = f"comparison on {data_sets[0]}" if len(data_sets) == 1 else "comparison"
    judged = _judged(main, runs, groups, columns)
    return (
        f'<p class="eyebrow">{_safe(eyebrow)}</p><h1>{_safe(title(runs))}</h1>'
        f"{judged}{_condition(runs)}{_settings(runs, about)}"
    )


def _subject(run: Run) -> str:
    """Return the method and the data set of a run, or the name of a network without a recipe."""
    if run.values:
        return f"{run.method} on {run.value('data.name')}"
    return run.network_name or run.method


def _judged(
    main: Main | None, runs: Sequence[Run], groups: Sequence[Group], columns: Sequence[Column]
) -> str:
    """Return the verdict: a word, the number, a sentence, and bars to compare it with."""
    if main is None:
        return f'<p class="score none">No score yet, so there is no verdict. {_advice(runs)}</p>'
    column = columns[main.column]
    subject = runs[groups[main.group].runs[0]]
    found = verdict(column.name, main.score, trained=not subject.is_untrained)
    percentage = column.unit.startswith("%")
    several = len(groups) > 1
    label = (
        groups[main.group].label if several else "this run" if subject.values else "this network"
    )
    return (
        f'<div class="verdict"><div>{_badge(found)}{_number(main, percentage)}'
        f'<p class="by">{_safe(capital(found.sentence))}.</p>'
        f'<p class="small">{_safe(_origin(main, column, groups, subject))}</p>{_overlap(main)}'
        f"</div>{_bars(main, label, subject.is_untrained) if percentage else ''}</div>"
    )


def _advice(runs: Sequence[Run]) -> str:
    """Return how to get a score: evaluate a run, or train it to its end first."""
    trained = [run for run in runs if run.finished or not run.values]
    if trained:
        return f"Run <code>{_safe(f'antipode evaluate {command_path(trained[0])}')}</code>."
    command = provenance.resuming_command(runs[0])
    return f"Training has not ended. Resume it with <code>{_safe(command)}</code>, then evaluate."


def _badge(found: Verdict) -> str:
    """Return the verdict in a few words, with a mark that does not depend on colours."""
    if not found.word:
        return ""
    kind = {True: "good", False: "bad", None: "plain"}[found.good]
    mark = {True: "✓", False: "!", None: "·"}[found.good]
    word = _safe(capital(found.word))
    return f'<p class="badge {kind}"><b aria-hidden="true">{mark}</b> {word}</p>'


def _number(main: Main, percentage: bool) -> str:
    """Return the main number with its spread over seeds, or its interval."""
    value = f"{main.mean:.1f}" if percentage else f"{main.mean:.3g}"
    unit = '<span class="unit">%</span>' if percentage else ""
    beside = ""
    if main.std is not None:
        spread = f"{main.std:.1f}" if percentage else f"{main.std:.3g}"
        beside = f"± {spread}"
    elif number(main.score.get("low")) and number(main.score.get("high")):
        beside = f"{main.score['low']:.1f} to {main.score['high']:.1f}"  # the sentence explains it
    shown = f'<span class="spread">{beside}</span>' if beside else ""
    return f'<p class="score"><strong>{value}{unit}</strong>{shown}</p>'


def _origin(main: Main, column: Column, groups: Sequence[Group], subject: Run) -> str:
    """Return where the number comes from: protocol, images, seeds and setting."""
    several = len(groups) > 1 and main.settings > 1
    split = "training" if column.split == "train" else column.split
    images = f"Score {column.name} on {column.n:,} {split} images of {column.data}. "
    which = f"{groups[main.group].label}, the highest of {main.settings} settings. "
    if main.n > 1:
        seeds = f"Mean ± standard deviation over {main.n} seeds."
    else:
        seeds = "One seed: train several to see their spread." if subject.values else ""
    return f"{images}{which if several else ''}{seeds}".strip()


def _overlap(main: Main) -> str:
    """Return a warning about test images that are also training images."""
    more = main.score.get("more")
    count = more.get(OVERLAP) if isinstance(more, dict) else None
    if not number(count) or not count:
        return ""
    return (
        f'<p class="overlap">{int(count):,} of the test images are also training images, so this '
        "score is too high. See Duplicates.</p>"
    )


def _bars(main: Main, label: str, is_untrained: bool) -> str:
    """Return bars of the score, of the untrained network and of chance, as a table.

    An untrained network is not compared with itself.
    """
    more = main.score.get("more")
    untrained = more.get("untrained") if isinstance(more, dict) else None
    rows: list[tuple[str, Any, str]] = [(label, main.mean, "own")]
    rows += [] if is_untrained else [("untrained network", untrained, "base")]
    rows += [("chance", main.score.get("chance"), "base")]
    lines = [_bar(name, float(value), kind, main) for name, value, kind in rows if number(value)]
    return (
        '<table class="bars"><caption>Compared with</caption>'
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _bar(name: str, value: float, kind: str, main: Main) -> str:
    width = max(0.0, min(100.0, value))
    whisker = ""
    low: Any = main.score.get("low")
    high: Any = main.score.get("high")
    if kind == "own" and main.std is None and number(low) and number(high):
        left, right = (max(0.0, min(100.0, float(end))) for end in (low, high))
        whisker = f'<i style="left:{left:.2f}%;width:{max(right - left, 0.3):.2f}%"></i>'
    return (
        f'<tr><th scope="row">{_safe(name)}</th><td class="track"><span class="{kind}" '
        f'style="width:{max(width, 0.4):.2f}%"></span>{whisker}</td>'
        f'<td class="number">{_safe(percent(value))}</td></tr>'
    )


def _condition(runs: Sequence[Run]) -> str:
    """Return the condition of the embeddings of a single run in words."""
    found: Condition | None = condition(runs[0], runs[0].shown_scores) if len(runs) == 1 else None
    if found is None:
        return ""
    items = "".join(
        f'<li class="{"fine" if one.good else "bad"}"><b>{_safe(one.name.capitalize())}</b> '
        f"{_safe(capital(one.sentence))}.</li>"
        for one in found.findings
    )
    where = f'<p class="small">Measured on the {_safe(found.of)}.</p>'
    return f'<div class="condition"><h2>Health of the embeddings</h2><ul>{items}</ul>{where}</div>'


def _comparison(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """Return a description of several runs."""
    methods = list(dict.fromkeys(run.method for run in runs if run.values))
    foreign = sum(not run.values for run in runs)
    parts = methods[:6] + ([f"{len(methods) - 6} more methods"] if len(methods) > 6 else [])
    parts += [f"{_count(foreign, 'network')} that no run here has trained"] if foreign else []
    listed = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    settings = _count(len(groups), "setting")
    return f"{settings} of {listed}. Runs that differ only by their seed are one setting."


def _settings(runs: Sequence[Run], about: str) -> str:
    """Return a description of the run and a few numbers, folded away."""
    if len(runs) > 1 or not runs[0].values:
        return f'<p class="what">{_safe(about)}</p>'
    run = runs[0]
    final = run.log.final_loss()
    speeds = run.log.column("images_per_second")
    speeds = speeds[speeds > 0]
    facts = {
        "Network": str(run.value("backbone.name")),
        "Epochs": f"{epochs_done(run)} of {run.value('train.epochs')}",
        "Final loss": "-" if final is None else final_loss(*final),
        "Images per second": f"{np.median(speeds):,.0f}" if len(speeds) else "-",
        "Training time": _time(training_seconds(run)),
        "Device": str(run.environment.get("device", "-")),
    }
    items = "".join(
        f"<div><dt>{_safe(name)}</dt><dd>{_safe(value)}</dd></div>" for name, value in facts.items()
    )
    return (
        '<details class="about"><summary>How it was trained</summary>'
        f'<p class="what">{_safe(about)}</p><dl class="facts">{items}</dl></details>'
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def _safe(text: Any) -> str:
    """Return a text that is neither markup nor able to reorder the text around it.

    A number and its % stay on one line.
    """
    return html.escape(printable(str(text))).replace(" %", "&nbsp;%")
