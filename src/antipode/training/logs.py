"""TensorBoard and Weights & Biases: one run there for one run here, however often it was stopped and resumed."""

import json
import os
import secrets
import warnings
from importlib import import_module
from typing import Any, Protocol

from antipode import dist
from antipode.recipe.schema import Monitor
from antipode.runs.folder import RunFolder

PROJECT = "antipode"  # WANDB_PROJECT names another


class Log(Protocol):
    """Where rows of metrics go besides metrics.jsonl."""

    def row(self, values: dict[str, Any]) -> None:
        """Take the numbers of one row, which has its `step`."""

    def close(self) -> None:
        """Hand over what is still held."""


class Offline(UserWarning):
    """Weights & Biases cannot be reached, and the log is kept in the run folder."""


def open(plan: Monitor, run: RunFolder, start: int, config: dict[str, Any]) -> list[Log]:
    """The logs that a recipe asks for, from step `start` on; on rank 0 only. `config` is shown beside the curves."""
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
        module = _needed("torch.utils.tensorboard", "TensorBoard", "tensorboard")
        # a resumed run repeats the steps since its last checkpoint: what was shown of them is taken back
        self.writer = module.SummaryWriter(log_dir=str(run.path / "tensorboard"), purge_step=start)
        if start == 0:
            self.writer.add_text(
                "recipe", f"```json\n{json.dumps(config, indent=1, default=str)}\n```", 0
            )

    def row(self, values: dict[str, Any]) -> None:
        """One point for each number."""
        for name, value in _numbers(values).items():
            if name != "step":
                self.writer.add_scalar(name, value, values["step"])

    def close(self) -> None:
        """Write what is in the buffer."""
        self.writer.close()


class Wandb:
    """A run of Weights & Biases, whose id is kept in `wandb.json` of the run folder.

    Its own step counter refuses to go back, as a resumed run must by the steps since its last checkpoint; so `step` is
    logged as the axis of every curve, and the steps done twice are equal points on top of each other.
    """

    def __init__(self, run: RunFolder, config: dict[str, Any]) -> None:
        self.module = _needed("wandb", "Weights & Biases", "wandb")
        ident = run.read_json("wandb.json").get("id")
        if ident is None:
            ident = secrets.token_hex(4)
            run.write_json(
                "wandb.json", {"id": ident}
            )  # before the first contact: a crash there makes no second run
        self.run = self._begin(
            {"id": ident, "name": run.path.resolve().name, "dir": str(run.path), "config": config}
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def _begin(self, options: dict[str, Any]) -> Any:
        """Online where that works; else the same in files, for `wandb sync`."""
        options |= {"project": os.environ.get("WANDB_PROJECT", PROJECT), "resume": "allow"}
        try:
            return self.module.init(**options)
        except self.module.Error as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(
                f"Weights & Biases cannot be reached ({reason}): the log is kept in {options['dir']}/wandb, "
                "send it later with `wandb sync`",
                Offline,
                stacklevel=4,
            )
            return self.module.init(**options, mode="offline")

    def row(self, values: dict[str, Any]) -> None:
        """One point for each number."""
        self.run.log(_numbers(values))

    def close(self) -> None:
        """Send what is still held and end the process behind it."""
        self.run.finish()


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _needed(module: str, title: str, extra: str) -> Any:
    """A module of an extra; a sentence where it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(
            f"{title} is an extra of its own: pip install 'antipode[{extra}]'"
        ) from None
