"""What `antipode evaluate` prints below the scores: the verdict, and the condition in words."""

from collections.abc import Mapping
from pathlib import Path

from antipode.evaluation.condition import condition
from antipode.evaluation.headline import headline, verdict
from antipode.evaluation.score import Score
from antipode.runs.run import Runs, opened


def judgement(run: Runs, scores: Mapping[str, Score], out: Path | None = None) -> list[str]:
    """Return lines of text: the verdict of the scores, and the condition of the embeddings.

    `run` and `out` are the arguments of `evaluate`.
    """
    name = headline(scores)
    if name is None:
        return []
    subject = opened(run, out=out)
    found = verdict(name, scores[name].json(), trained=not subject.is_untrained)
    word = f" ({found.word})" if found.word else ""
    lines = [f"verdict{word}: {found.sentence}"]
    health = condition(subject, subject.scores)
    if health is not None:
        lines += [f"{health.of}:", *(f"  {line}" for line in health.lines())]
    return lines
