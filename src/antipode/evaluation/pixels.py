"""Random views of evaluations, with the pixels that the backbone was trained on."""

from antipode.data.views.operation import Centre
from antipode.data.views.policy import View
from antipode.data.views.views import Views


def as_evaluated(policy: list[View], eval_view: Views) -> Views:
    """Return the views of a policy with the pixel normalisation of the evaluation view.

    The normalisation, which is the last operation of each view, is replaced by the operations of
    the evaluation view after its centre crop. A run may standardise each image, for example.
    """
    kept = [
        operation
        for operation in eval_view.policy[0].operations
        if not isinstance(operation, Centre)
    ]
    views = [View(view.size, (*view.operations[:-1], *kept)) for view in policy]
    return Views(views, eval_view.normal)
