"""The public function `plan`, and what it shares with `pretrain`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from antipode.data.sources.catalog import Given, from_path, python_name
from antipode.data.sources.label_folders import Labels
from antipode.paths import absolute_or_none
from antipode.recipe.request import Request, requested
from antipode.training import pretrain as training
from antipode.training.plan import Plan
from antipode.types import check_kind


def plan(
    recipe: str | Path | Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    data: Given | None = None,
    backbone: str | nn.Module | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    out: str | Path | None = None,
    seed: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    labels: Labels | None = None,
    resume: bool = True,
    overwrite: bool = False,
    overrides: Mapping[str, Any] | Sequence[str] = (),
) -> Plan:
    """Return what `pretrain` would do, with the time and memory that it needs.

    A few steps are timed with a network that is thrown away. Nothing is written. The arguments are
    those of `pretrain`.
    """
    check_kind(bool, resume=resume, overwrite=overwrite)
    data = from_path(data)
    flags = {
        "train.epochs": epochs,
        "train.batch": batch,
        "train.seed": seed,
        "train.device": device,
        "train.precision": precision,
        "data.labels": labels,
    }
    request = run_request(recipe, method, data, backbone, overrides, flags)
    module = backbone if isinstance(backbone, nn.Module) else None
    options = training.Options(resume, overwrite)
    return training.plan(request, absolute_or_none(out), data, module, options)


def run_request(
    recipe: str | Path | Mapping[str, Any] | None,
    method: str | None,
    data: Given | None,
    backbone: str | nn.Module | None,
    overrides: Mapping[str, Any] | Sequence[str],
    flags: Mapping[str, Any],
) -> Request:
    """Read the values that a user gave for a run. `flags` are values by dotted key."""
    named = data if data is None or isinstance(data, str) else python_name(data)
    own = isinstance(backbone, nn.Module)
    network = f"python:{type(backbone).__name__}" if own else backbone
    return requested(
        recipe,
        method=method,
        data=named,
        overrides=overrides,
        flags={"backbone.name": network, **flags},
    )
