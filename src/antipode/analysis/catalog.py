"""The analyses by name, the runs that each of them fits, and the function that runs them."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from antipode.analysis import bank, between, contrast, cost, duplicates, geometry
from antipode.analysis.embeddings import RunEmbeddings
from antipode.analysis.result import Result
from antipode.core.learner import Learner
from antipode.core.traits import stored_negatives, temperature
from antipode.files import finite
from antipode.names import check_name
from antipode.papers import collect, methods, sketch

# Returns the reason why an analysis does not fit the runs, as one sentence, or None if it fits.
Unfit = Callable[[list[RunEmbeddings]], str | None]


def anything(subjects: list[RunEmbeddings]) -> str | None:
    """Return None: the analysis fits every run."""
    return None


def needs_temperature(subjects: list[RunEmbeddings]) -> str | None:
    """Return the reason why the analysis does not fit if a run has no negatives and temperature."""
    for subject in subjects:
        if subject.tau is None:
            return (
                f"{subject.name} is a run of {subject.recipe.method.name}, which has no "
                f"temperature; methods with one are {_methods_with(temperature)}"
            )
    return None


def needs_stored_negatives(subjects: list[RunEmbeddings]) -> str | None:
    """Return the reason why the analysis does not fit if a run stores no vectors."""
    for subject in subjects:
        if subject.stored is None:
            return (
                f"{subject.name} is a run of {subject.recipe.method.name} without a queue, bank or "
                f"memory of negatives; methods that have one by default are "
                f"{_methods_with(stored_negatives)}"
            )
    return None


def several(subjects: list[RunEmbeddings]) -> str | None:
    """Return the reason why runs cannot be compared, if there is one run or if channels differ."""
    first = subjects[0]
    if len(subjects) < 2:
        return f"it compares runs, and only {first.name} is given: give two or more runs"
    for other in subjects[1:]:
        if other.splits.channels != first.splits.channels:
            return (
                f"{first.name} takes images of {first.splits.channels} channels and {other.name} "
                f"of {other.splits.channels} channels, so they cannot be compared on one data set"
            )
    return None


@cache
def _methods_with(trait: Callable[[Learner], Any]) -> str:
    """Return the names of the methods that have a trait with their default arguments."""
    return ", ".join(name for name in methods() if trait(sketch(name, {})) is not None)


class Analysis(NamedTuple):
    """An analysis of runs.

    Args:
        run: function from runs to one result per run.
        about: a short description.
        several: whether it compares several runs.
        unfit: function from runs to the reason why the analysis does not fit them, or to None.
    """

    run: Callable[[list[RunEmbeddings]], list[Result]]
    about: str
    several: bool = False
    unfit: Unfit = anything


def each(
    measure: Callable[[RunEmbeddings], Result],
) -> Callable[[list[RunEmbeddings]], list[Result]]:
    """Return a function that applies an analysis of one run to each of several runs."""
    return lambda subjects: [measure(subject) for subject in subjects]


GENERAL: dict[str, Analysis] = {
    "mi-bound": Analysis(
        each(contrast.mi_bound),
        "EqCo's lower bound on mutual information, against K and over training",
        unfit=needs_temperature,
    ),
    "gradient-norm": Analysis(
        each(contrast.gradient_norm),
        "norm of the gradient of a query against K, with the bound of EqCo's theorem 2",
        unfit=needs_temperature,
    ),
    "npc": Analysis(
        each(contrast.npc), "DCL's multiplier q_B against the batch size", unfit=needs_temperature
    ),
    "similarity-variance": Analysis(
        each(geometry.similarity_variance),
        "JCL's histograms of similarity and variance over 32 views of an image",
    ),
    "alignment-uniformity": Analysis(
        each(geometry.alignment_uniformity),
        "Wang & Isola's alignment and uniformity of backbone, head and prediction",
    ),
    "spectrum": Analysis(
        each(geometry.spectra),
        "singular values and effective rank of unit features that are not centred",
    ),
    "cka": Analysis(
        between.compare_cka,
        "linear CKA between the backbones of several runs",
        several=True,
        unfit=several,
    ),
    "neighbours": Analysis(
        between.compare_neighbours,
        "share of nearest neighbours that several runs have in common",
        several=True,
        unfit=several,
    ),
    "bank": Analysis(
        each(bank.bank),
        "hardness, coverage and drift of a bank, queue or memory of negatives",
        unfit=needs_stored_negatives,
    ),
    "duplicates": Analysis(
        each(duplicates.duplicates),
        "exact and near duplicates among the images, listed in duplicates.csv",
    ),
    "cost": Analysis(each(cost.cost), "parameters, speed, device hours per epoch and memory"),
}


@cache
def analyses() -> Mapping[str, Analysis]:
    """Return all analyses by name: those of this module and those of the papers."""
    return {**GENERAL, **collect("ANALYSES")}


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError for an unknown name or an empty list."""
    if not names:
        raise ValueError(f"no analysis is given: choose from {', '.join(analyses())}")
    for name in names:
        check_name("analysis", name, analyses())


def perform(
    subjects: list[RunEmbeddings], names: Sequence[str] | None
) -> dict[str, dict[str, Any]]:
    """Return results by run and analysis. Add each to its run's analysis.json once it is computed.

    If `names` is None, all analyses are made that fit. The result of one that does not fit a run is
    {"skipped": reason}, and is not written. If an analysis in `names` does not fit, this raises
    ValueError before anything is computed.
    """
    chosen = list(analyses()) if names is None else list(dict.fromkeys(names))
    check_names(chosen)
    if names is not None:
        for name in chosen:
            reason = analyses()[name].unfit(subjects)
            if reason is not None:
                raise ValueError(f"{name} does not fit: {reason}")
    by_run: dict[str, dict[str, Any]] = {subject.name: {} for subject in subjects}
    for name in chosen:
        for subject, result in zip(subjects, _results(analyses()[name], subjects), strict=True):
            by_run[subject.name][name] = result
            if "skipped" not in result:
                subject.run.folder.file("analysis.json", {name: result})
    return by_run


def _results(analysis: Analysis, subjects: list[RunEmbeddings]) -> list[Result]:
    """Return one result per run. A comparison fits all runs or none of them."""
    groups = [subjects] if analysis.several else [[subject] for subject in subjects]
    results: list[Result] = []
    for group in groups:
        reason = analysis.unfit(group)
        results += [{"skipped": reason}] * len(group) if reason else finite(analysis.run(group))
    return results
