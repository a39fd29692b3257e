"""Named evaluations with fixed numbers: two scores with one name mean the same."""

import difflib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from antipode.evaluation import detect, linear, semi
from antipode.evaluation.alignment_uniformity import spread
from antipode.evaluation.logistic import linear_fast
from antipode.evaluation.nearest import nearest
from antipode.evaluation.score import Result
from antipode.evaluation.svm import lowshot_svm, svm_voc07
from antipode.evaluation.task import Task


class Protocol(NamedTuple):
    """A run of it, a line about it, and the data set it belongs to where that is not the run's own."""

    run: Callable[[Task], Result]
    about: str
    data: str | None = None


PROTOCOLS: dict[str, Protocol] = {
    "knn": Protocol(
        partial(nearest, k=200, tau=0.07),
        "vote of the 200 nearest, weighted by exp(sim/.07) (NPID)",
    ),
    "knn20": Protocol(
        partial(nearest, k=20, tau=None), "vote of the 20 nearest, all equal (MSBReg)"
    ),
    "knn200": Protocol(
        partial(nearest, k=200, tau=None), "vote of the 200 nearest, all equal (MSBReg)"
    ),
    "knn-head": Protocol(
        partial(nearest, k=200, tau=0.07, of="head"), "knn on what the head projects to"
    ),
    **{
        name: Protocol(partial(linear.run, settings=settings), settings.about, settings.data)
        for name, settings in linear.LINEAR.items()
    },
    "linear-fast": Protocol(
        linear_fast, "logistic regression on frozen features, its penalty chosen on train images"
    ),
    "semi-1": Protocol(
        partial(semi.run, share=0.01), "classifier on 1 % of the labels, frozen backbone (MSBReg)"
    ),
    "semi-10": Protocol(
        partial(semi.run, share=0.1), "classifier and backbone on 10 % of the labels (MSBReg)"
    ),
    "svm-voc07": Protocol(
        svm_voc07, "mAP of linear SVMs, a cost per class by 3 folds (Goyal et al.)", "voc07"
    ),
    "lowshot-svm": Protocol(
        lowshot_svm, "mAP of linear SVMs on 1 to 96 images per class (Goyal et al.)", "voc07"
    ),
    "detect-voc": Protocol(
        partial(detect.run, settings=detect.VOC),
        "Faster R-CNN C4, fine-tuned 24k iterations (MoCo, MSBReg)",
        "voc07+12",
    ),
    "detect-coco": Protocol(
        partial(detect.run, settings=detect.COCO),
        "Faster R-CNN FPN, fine-tuned 90k iterations (EqCo)",
        "coco",
    ),
    "segment-coco": Protocol(
        partial(detect.run, settings=detect.MASKS),
        "Mask R-CNN FPN, fine-tuned 90k iterations (MSBReg)",
        "coco",
    ),
    "alignment-uniformity": Protocol(
        spread, "alignment and uniformity of pairs of views (Wang & Isola)"
    ),
}


def known(protocol: str) -> Protocol:
    """The protocol of a name; a name that is none is refused."""
    if protocol not in PROTOCOLS:
        near = difflib.get_close_matches(str(protocol), PROTOCOLS, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(
            f"there is no protocol {protocol!r}{hint}: choose from {', '.join(PROTOCOLS)}"
        )
    return PROTOCOLS[protocol]
