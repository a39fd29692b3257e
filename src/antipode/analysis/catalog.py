"""The analyses by name, which runs each fits, and running them."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from antipode.analysis import bank, between, contrast, cost, geometry
from antipode.analysis.embeddings import WITH_MEMORY, WITH_TAU, Subject
from antipode.analysis.result import Result
from antipode.files import finite
from antipode.runs.folder import RunFolder

Fits = Callable[
    [list[Subject]], str | None
]  # why these runs cannot have it, in one sentence; None where they can


def anything(subjects: list[Subject]) -> str | None:
    """Every run has it."""
    return None


def repelled(subjects: list[Subject]) -> str | None:
    """Refuse runs without negatives and temperature."""
    for subject in subjects:
        if subject.tau is None:
            have = f"{', '.join(WITH_TAU)} and custom with negatives have"
            return f"{subject.name} is a run of {subject.recipe.method.name}, which has no temperature: {have} one"
    return None


def remembered(subjects: list[Subject]) -> str | None:
    """Refuse runs that store no vectors."""
    for subject in subjects:
        if subject.stored is None:
            have = f"{', '.join(WITH_MEMORY)} do, eqco, dcl and dclw on MoCo, and custom with a bank or queue"
            return f"{subject.name} is a run of {subject.recipe.method.name}, which keeps no negatives: {have}"
    return None


def several(subjects: list[Subject]) -> str | None:
    """Refuse a single run, and runs that cannot see the same images."""
    if len(subjects) < 2:
        return f"it compares runs, and {subjects[0].name} is one: give two or more"
    first = subjects[0]
    for other in subjects[1:]:
        if other.splits.channels != first.splits.channels:
            ours = f"{first.name} sees images of {first.splits.channels} channels"
            return f"{ours} and {other.name} of {other.splits.channels}, so they cannot be compared on one data set"
    return None


class Analysis(NamedTuple):
    """What it does to runs, a line about it, whether it compares several, and which runs it fits."""

    run: Callable[[list[Subject]], list[Result]]
    about: str
    several: bool = False
    unfit: Fits = anything


def each(measure: Callable[[Subject], Result]) -> Callable[[list[Subject]], list[Result]]:
    """An analysis of one run, for each of several."""
    return lambda subjects: [measure(subject) for subject in subjects]


ANALYSES: dict[str, Analysis] = {
    "mi-bound": Analysis(
        each(contrast.mi_bound),
        "EqCo's lower bound on mutual information, against K and over training",
        unfit=repelled,
    ),
    "gradient-norm": Analysis(
        each(contrast.gradient_norm),
        "EqCo's gradient of a query against K, beside theorem 2's bound",
        unfit=repelled,
    ),
    "npc": Analysis(
        each(contrast.npc), "DCL's multiplier q_B against the batch size", unfit=repelled
    ),
    "similarity-variance": Analysis(
        each(geometry.similarity_variance),
        "JCL's histograms of similarity and variance over 32 views of an image",
    ),
    "alignment-uniformity": Analysis(
        each(geometry.alignment_uniformity),
        "Wang & Isola's two measures, of backbone, head and prediction",
    ),
    "spectrum": Analysis(
        each(geometry.spectra), "singular values and effective rank of the features"
    ),
    "cka": Analysis(
        between.compare_cka,
        "linear CKA between the backbones of several runs",
        several=True,
        unfit=several,
    ),
    "neighbours": Analysis(
        between.compare_neighbours,
        "nearest neighbours that several runs share",
        several=True,
        unfit=several,
    ),
    "bank": Analysis(
        each(bank.bank),
        "hardness, coverage and drift of a bank, queue or memory of negatives",
        unfit=remembered,
    ),
    "cost": Analysis(each(cost.cost), "parameters, speed, device hours per epoch and memory"),
    "jcl-complexity": Analysis(
        each(cost.jcl_complexity),
        "time and memory of JCL's closed form and of the vanilla loss against M'",
    ),
}


def known(names: Sequence[str]) -> None:
    """Refuse a name that is none, and an empty list."""
    if not names:
        raise ValueError(f"there is nothing to analyse: choose from {', '.join(ANALYSES)}")
    for name in names:
        if name not in ANALYSES:
            near = difflib.get_close_matches(name, ANALYSES, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(
                f"there is no analysis {name!r}{hint}: choose from {', '.join(ANALYSES)}"
            )


def perform(subjects: list[Subject], what: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Results by run and analysis, each added to its run's analysis.json as it comes.

    Without `what`, all that fit; the others are {"skipped": sentence} in what is returned, and not on the disk. An
    analysis that is asked for by name and does not fit is refused before anything is computed.
    """
    names = list(ANALYSES) if what is None else list(dict.fromkeys(what))
    known(names)
    reasons = {
        name: reason for name in names if (reason := ANALYSES[name].unfit(subjects)) is not None
    }
    if what is not None and reasons:
        name, reason = next(iter(reasons.items()))
        raise ValueError(f"{name} does not fit: {reason}")
    found: dict[str, dict[str, Any]] = {subject.name: {} for subject in subjects}
    for name in names:
        for subject, result in zip(subjects, _results(ANALYSES[name], subjects), strict=True):
            found[subject.name][name] = result
            if "skipped" not in result:
                RunFolder(subject.path).file("analysis.json", {name: result})
    return found


def _results(analysis: Analysis, subjects: list[Subject]) -> list[Result]:
    """One for each run; a comparison fits all or none of them."""
    groups = [subjects] if analysis.several else [[subject] for subject in subjects]
    results: list[Result] = []
    for group in groups:
        reason = analysis.unfit(group)
        results += [{"skipped": reason}] * len(group) if reason else finite(analysis.run(group))
    return results
