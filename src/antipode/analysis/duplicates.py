"""Exact and near duplicates among the images of a run, listed in duplicates.csv."""

import math

from antipode.analysis.embeddings import RunEmbeddings
from antipode.analysis.result import Result
from antipode.evaluation.duplicate_search import counts, search, write_list
from antipode.evaluation.near_duplicates import AGREE
from antipode.evaluation.task import Task


def duplicates(subject: RunEmbeddings) -> Result:
    """Return the numbers of duplicates, and write the pairs to duplicates.csv in the run folder."""
    task = Task(
        backbone=subject.learner.backbone,
        splits=subject.splits,
        size=subject.recipe.views.size,
        eval_view=subject.eval_view,
        device=subject.device,
        seed=subject.seed,
        cache=subject.run.path / "features",
    )
    found = search(task, budget=math.inf, most=subject.images)
    file = write_list(subject.run.path, task, found)
    settings = subject.settings(
        images=found.compared,
        similarity="cosine of backbone features",
        least_similarity=found.bound,
        least_agreement=AGREE,
    )
    notes = [*found.notes(), f"{file.name} lists the pairs"]
    return {"settings": settings, "values": counts(found), "notes": notes}
