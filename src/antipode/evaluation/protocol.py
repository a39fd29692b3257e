"""Evaluation protocols by name. A name fixes every setting, so equal names mean equal protocols."""

import warnings
from collections.abc import Collection, Mapping
from functools import cache, partial
from importlib import import_module

from antipode.evaluation import finetune, linear, semi
from antipode.evaluation.alignment_uniformity import alignment_uniformity
from antipode.evaluation.logistic import linear_fast
from antipode.evaluation.nearest import held_out, nearest, one_each
from antipode.evaluation.score import Result
from antipode.evaluation.svm import lowshot_svm, svm_voc07
from antipode.evaluation.task import Protocol, Task, is_unlabelled
from antipode.names import check_name
from antipode.papers import collect


def detection(task: Task, settings: str) -> Result:
    """Run a detection protocol; `settings` is the name of its settings in `evaluation.detect`.

    That module is imported only here, because it imports torchvision. torchvision loads torch's
    compiler, which takes longer than a kNN score of a small data set.
    """
    detect = import_module("antipode.evaluation.detect")
    result: Result = detect.run(task, getattr(detect, settings))
    return result


def _votes(k: int, tau: float | None, about: str) -> Protocol:
    """Return the protocol of a vote of k neighbours. The untrained network is scored, too."""
    return Protocol(partial(nearest, k=k, tau=tau), about, baseline=True)


GENERAL: dict[str, Protocol] = {
    "knn": _votes(
        200, 0.07, "vote of the 200 nearest neighbours, weighted by exp(similarity/.07) (NPID)"
    ),
    "knn10": _votes(10, None, "unweighted vote of the 10 nearest neighbours"),
    "knn20": _votes(20, None, "unweighted vote of the 20 nearest neighbours (MSBReg)"),
    "knn20-weighted": _votes(
        20, 0.07, "vote of the 20 nearest neighbours, weighted by exp(similarity/.07) (MSBReg)"
    ),
    "knn200": _votes(200, None, "unweighted vote of the 200 nearest neighbours (MSBReg)"),
    "knn-held-out": Protocol(
        held_out, "unweighted vote of 20, for every tenth train image; uses no test image"
    ),
    "knn-head": Protocol(
        partial(nearest, k=200, tau=0.07, of="head"), "knn on the projections of the head"
    ),
    "linear": linear.protocol(linear.MOCO),
    "linear-fast": Protocol(
        linear_fast, "logistic regression on frozen features, penalty chosen on train images"
    ),
    "semi-1": Protocol(
        partial(semi.run, share=0.01), "classifier on 1 % of the labels, frozen backbone (MSBReg)"
    ),
    "semi-10": Protocol(
        partial(semi.run, share=0.1), "classifier and backbone on 10 % of the labels (MSBReg)"
    ),
    "finetune": Protocol(
        finetune.run, "classifier and backbone on all labels, epochs by the number of images"
    ),
    "svm-voc07": Protocol(
        svm_voc07, "mAP of linear SVMs, cost per class chosen on 3 folds (Goyal et al.)", "voc07"
    ),
    "lowshot-svm": Protocol(
        lowshot_svm, "mAP of linear SVMs on 1 to 96 images per class (Goyal et al.)", "voc07"
    ),
    "detect-voc": Protocol(
        partial(detection, settings="VOC"),
        "Faster R-CNN C4, fine-tuned for 24k iterations (MoCo, MSBReg)",
        "voc07+12",
    ),
    "detect-coco": Protocol(
        partial(detection, settings="COCO"),
        "Faster R-CNN FPN, fine-tuned for 90k iterations (EqCo's release)",
        "coco",
    ),
    "segment-coco": Protocol(
        partial(detection, settings="MASKS"),
        "Mask R-CNN FPN, fine-tuned for 90k iterations (MSBReg)",
        "coco",
    ),
    "alignment-uniformity": Protocol(
        alignment_uniformity,
        "alignment and uniformity of pairs of views (Wang & Isola)",
        labels=False,
    ),
}


@cache
def protocols() -> Mapping[str, Protocol]:
    """Return all protocols by name: those of this module and those of the papers."""
    return {**GENERAL, **collect("PROTOCOLS")}


def known(name: str) -> Protocol:
    """Return a protocol by name. Raises ValueError for an unknown name."""
    check_name("protocol", name, protocols())
    return protocols()[name]


LABEL_FREE = ("retrieval", "alignment-uniformity")
NEIGHBOURS = {"knn": 200, "knn20": 20, "knn10": 10}  # the usual kNN protocols and their k


def usual(task: Task) -> tuple[str, ...]:
    """Return the names of the protocols that fit a data set, for a user who names none.

    They are kNN if every image has one label, with fewer neighbours on small data sets, and
    otherwise the protocols that need no labels.
    """
    if is_unlabelled(task.splits.train) or is_unlabelled(task.splits.test):
        return LABEL_FREE
    try:
        one_each(task, "kNN")
    except ValueError as error:
        names = " and ".join(LABEL_FREE)
        warnings.warn(f"scored by {names} instead of kNN: {error}", stacklevel=4)
        return LABEL_FREE
    count = len(task.labels("train"))
    fitting = [name for name, k in NEIGHBOURS.items() if k <= count]
    return tuple(fitting[:1]) or LABEL_FREE


def has_usual(stored: Collection[str]) -> bool:
    """Return True if the names of some scores include those of `usual`, whatever the data set."""
    return any(name in stored for name in NEIGHBOURS) or all(name in stored for name in LABEL_FREE)


def stored_name(name: str, own: str, data: str | None = None) -> str:
    """Return the name of a protocol's score in scores.json, for a run on the data set `own`.

    It is the name of the protocol, followed by @ and the data set if that is not the run's own:
    `data`, or that of the protocol.
    """
    data = data or known(name).data or own
    return name if data == own else f"{name}@{data}"
