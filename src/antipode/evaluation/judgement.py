"""What `antipode evaluate` prints below the scores: the verdict, and the condition in words."""

from collections.abc import Mapping
from pathlib import Path

from antipode.evaluation.condition import condition
from antipode.evaluation.headline import headline, verdict
from antipode.evaluation.score import Score
from antipode.runs.folder import IMAGES
from antipode.runs.run import Run, Runs, opened
from antipode.wording import overrides

FEW_IMAGES = 2000  # docs/choose.md: with fewer, start from weights


def judgement(run: Runs, scores: Mapping[str, Score], out: Path | None = None) -> list[str]:
    """Return lines of text: the verdict of the scores, and the condition of the embeddings.

    After a bad verdict, a line says what may help.
    `run` and `out` are the arguments of `evaluate`.
    """
    name = headline(scores)
    if name is None:
        return []
    subject = opened(run, out=out)
    found = verdict(name, scores[name].json(), trained=not subject.is_untrained)
    word = f" ({found.word})" if found.word else ""
    lines = [f"verdict{word}: {found.sentence}"]
    if found.good is False and subject.values:
        lines.append(f"next: {_next_step(subject)}")
    health = condition(subject, subject.scores)
    if health is not None:
        lines += [f"{health.of}:", *(f"  {line}" for line in health.lines())]
    return lines


def _next_step(run: Run) -> str:
    """Return what may help a run whose verdict is bad."""
    count = run.folder.read_object(IMAGES).get("images")  # None if it is unknown
    few = isinstance(count, int) and count < FEW_IMAGES
    if run.value("backbone.weights") is not None or not few:
        return "train for more epochs"
    weights = overrides({"backbone.weights": "torchvision"})
    return (
        f"train for more epochs, or start from weights trained on ImageNet with {weights}: "
        f"pretraining from scratch learns little from fewer than {FEW_IMAGES:,} images"
    )
