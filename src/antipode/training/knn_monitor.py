"""The kNN accuracy of a backbone while it trains."""

import warnings
from typing import Any

from antipode.core.learner import Learner
from antipode.data.sources.splits import Splits
from antipode.data.views.policy import evaluation_policy
from antipode.data.views.views import views as make_views
from antipode.evaluation.features import extract
from antipode.evaluation.nearest import accuracy
from antipode.recipe.recipe import Recipe
from antipode.training.record import Monitor


def knn_monitor(recipe: Recipe, splits: Splits) -> Monitor | None:
    """Return a function that computes kNN accuracy on the test split, None if none is asked for.

    The accuracy is recorded and has no influence on training.
    """
    if not recipe.monitor.knn_every:
        return None
    test = splits.test
    missing = _missing_for_knn(splits)
    if test is None or missing:
        warnings.warn(
            f"monitor.knn_every has no effect: {splits.name} has no {missing}", stacklevel=4
        )
        return None
    policy = evaluation_policy(recipe.views.policy)
    normal: dict[str, Any] = {"mean": splits.mean, "std": splits.std} if policy == "eval" else {}

    def monitor(learner: Learner, epoch: int) -> dict[str, float]:
        device = next(learner.parameters()).device
        eval_view = make_views(policy, size=recipe.views.size, **normal).to(device)
        train_set = extract(learner.backbone, eval_view, splits.train)
        test_set = extract(learner.backbone, eval_view, test)
        k = min(200, len(train_set.x))
        classes = int(train_set.y.max()) + 1
        return {"knn": accuracy(train_set, test_set, k=k, tau=0.07, classes=classes)}

    return monitor


def _missing_for_knn(splits: Splits) -> str:
    """Return what a data set lacks for kNN, an empty text if nothing."""
    if splits.train.labels is None:
        return "labels"
    if splits.test is None:
        return "test images"
    labels = [splits.train.labels, splits.test.labels]
    single = all(each is not None and each.ndim == 1 and int(each.min()) >= 0 for each in labels)
    return "" if single else "one label for each image"
