"""Log metrics to TensorBoard and Weights & Biases.

A run that is stopped and resumed remains one run there.
"""

import json
import os
import secrets
import warnings
from importlib import import_module
from typing import Any, Protocol

from antipode import dist
from antipode.recipe.schema import Monitor
from antipode.runs.folder import RunFolder

PROJECT = "antipode"  # the default; the environment variable WANDB_PROJECT overrides it


class Log(Protocol):
    """A logger that receives rows of metrics, besides metrics.jsonl."""

    def row(self, values: dict[str, Any]) -> None:
        """Log the numbers of one row, which contains its `step`."""

    def close(self) -> None:
        """Write or send what is still buffered."""


class Offline(UserWarning):
    """Weights & Biases cannot be reached, and the log is written to the run folder."""


def open(plan: Monitor, run: RunFolder, start: int, config: dict[str, Any]) -> list[Log]:
    """Open the loggers that a recipe asks for, from step `start` on.

    Returns an empty list on all ranks but rank 0. `config` is shown beside the curves.
    """
    if dist.rank() > 0:
        return []
    run.path.mkdir(parents=True, exist_ok=True)
    logs: list[Log] = []
    if plan.tensorboard:
        logs.append(TensorBoard(run, start, config))
    if plan.wandb:
        logs.append(Wandb(run, config))
    return logs


class TensorBoard:
    """Event files in `tensorboard/` of the run folder."""

    def __init__(self, run: RunFolder, start: int, config: dict[str, Any]) -> None:
        module = _import_extra("torch.utils.tensorboard", "TensorBoard", "tensorboard")
        # a resumed run repeats the steps since its last checkpoint, so their old points are removed
        self.writer = module.SummaryWriter(log_dir=str(run.path / "tensorboard"), purge_step=start)
        if start == 0:
            text = json.dumps(config, indent=1, default=str)
            self.writer.add_text("recipe", f"```json\n{text}\n```", 0)

    def row(self, values: dict[str, Any]) -> None:
        """Log one point for each number."""
        for name, value in _numbers(values).items():
            if name != "step":
                self.writer.add_scalar(name, value, values["step"])

    def close(self) -> None:
        """Write what is still buffered."""
        self.writer.close()


class Wandb:
    """A run of Weights & Biases; its id is stored in `wandb.json` of the run folder.

    A resumed run repeats the steps since its last checkpoint, but the step counter of Weights &
    Biases cannot go back. So `step` is logged as the axis of every curve. Repeated steps are equal
    points on top of each other.
    """

    def __init__(self, run: RunFolder, config: dict[str, Any]) -> None:
        self.module = _import_extra("wandb", "Weights & Biases", "wandb")
        run_id = run.read_object("wandb.json").get("id")
        if run_id is None:
            run_id = secrets.token_hex(4)
            # written before the first contact, so that a crash there does not create a second run
            run.write_json("wandb.json", {"id": run_id})
        self.run = self._begin(
            {"id": run_id, "name": run.path.resolve().name, "dir": str(run.path), "config": config}
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def _begin(self, options: dict[str, Any]) -> Any:
        """Start or resume the run online; if that fails, warn and log to files for `wandb sync`."""
        options |= {"project": os.environ.get("WANDB_PROJECT", PROJECT), "resume": "allow"}
        try:
            return self.module.init(**options)
        except self.module.Error as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(
                f"Weights & Biases cannot be reached ({reason}): the log is written to "
                f"{options['dir']}/wandb, upload it later with `wandb sync`",
                Offline,
                stacklevel=4,
            )
            return self.module.init(**options, mode="offline")

    def row(self, values: dict[str, Any]) -> None:
        """Log one point for each number."""
        self.run.log(_numbers(values))

    def close(self) -> None:
        """Send what is still buffered, and end the process of Weights & Biases."""
        self.run.finish()


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    """Return the values that are numbers."""
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _import_extra(module: str, title: str, extra: str) -> Any:
    """Return a module of an optional dependency; raise ValueError if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(f"{title} is not installed: run pip install 'antipode[{extra}]'") from None
