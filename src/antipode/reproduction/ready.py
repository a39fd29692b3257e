"""What must be there before the runs of an item are trained."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from antipode.analysis import catalog as analyses
from antipode.data.sources.catalog import load
from antipode.devices import pick_device
from antipode.evaluation import protocol
from antipode.evaluation.precision import library
from antipode.reproduction.plan import Plan, PlannedRun
from antipode.runs.run import Run, opened


def check_single_process() -> None:
    """Raise ValueError if there are several processes: they would write the same files."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        raise ValueError(
            f"reproduce needs a single process, but WORLD_SIZE is {world}: train the runs under "
            "torchrun with the commands that --plan lists, then call reproduce without torchrun"
        )


@contextmanager
def data_root(root: str | Path | None) -> Iterator[None]:
    """Set ANTIPODE_DATA to a folder for the duration of a call.

    The recipes of the runs then name no folder, so the runs stay valid after the data is moved.
    """
    before = os.environ.get("ANTIPODE_DATA")
    if root:
        os.environ["ANTIPODE_DATA"] = str(root)
    try:
        yield
    finally:
        if root:
            os.environ.pop("ANTIPODE_DATA")
            os.environ |= {} if before is None else {"ANTIPODE_DATA": before}


def check_ready(plan: Plan, *, here: bool = True) -> None:
    """Raise an error before any training if data sets, protocols or libraries are missing.

    The device is checked only if the runs train on this machine, which `here` says.
    """
    measures = [measure for trial, _ in plan.trials for measure in trial.measures]
    names = {planned.recipe.data.name for planned in plan.runs if planned.recipe is not None}
    for measure in measures:
        if measure.kind == "score":
            names |= {name for name in (protocol.known(measure.name).data, measure.data) if name}
        elif measure.kind == "analysis":
            analyses.check_names([measure.name])
    if any(measure.name.startswith(("detect", "segment")) for measure in measures):
        library()
    if here:
        pick_device(plan.device)
    for planned in plan.runs:
        if planned.trial.recipe.startswith("torchvision:"):
            opened_network(planned).backbone()  # downloads the weights
    for name in sorted(names):
        try:
            load(name)
        except (ValueError, FileNotFoundError) as error:
            raise FileNotFoundError(
                f"{plan.name} at scale {plan.scale} needs {name}: {error}"
            ) from None


def opened_network(planned: PlannedRun) -> Run:
    """Return a network that is not trained, with the run folder for its scores."""
    return opened(planned.trial.recipe, data=planned.data, out=planned.folder, seed=planned.seed)
