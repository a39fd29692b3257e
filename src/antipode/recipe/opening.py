"""Open the data set of a request, and settle what depends on it: labels and defaults."""

from typing import Any

from antipode.data.sources.catalog import load
from antipode.data.sources.label_folders import Labels
from antipode.data.sources.located import path_of
from antipode.data.sources.sizes import median_side, sampled_sizes
from antipode.data.sources.splits import Splits
from antipode.devices import pick_device
from antipode.recipe.datasets import DATASETS, stands_for
from antipode.recipe.layer import Given, Source
from antipode.recipe.own_data import LARGEST, OwnData
from antipode.recipe.recipe import Recipe, assemble
from antipode.recipe.request import Request
from antipode.recipe.resolve import resolve
from antipode.wording import counted, option


def open_data(
    request: Request, data: Any = None, stored: Recipe | None = None
) -> tuple[Splits, Request]:
    """Return the splits of a request, and the request with the decision about labels.

    Args:
        request: what the user asks for.
        data: your own Datasets, if they were passed from Python.
        stored: the recipe of the run that is resumed; its decision about labels holds.
    """
    _check_labels(request)
    labels = _labels(request, stored)
    if data is not None and not isinstance(data, str):
        # training needs no labels, so the items of a Dataset are not read only to get them
        splits = load(data, ask=bool(request.get("monitor.knn_every")))
    else:
        root = request.get("data.root")
        download = bool(request.get("data.download"))
        splits = _load(request, root, download, labels)
    if request.get("data.labels") == "folders" and "data.labels" in request.asked:
        _check_classes(splits)
    return splits, _decided(request, labels, splits, stored)


def _load(request: Request, root: Any, download: bool, labels: Labels) -> Splits:
    """Load the data set of a request by name."""
    try:
        return load(request.data, root, download, labels=labels)
    except FileNotFoundError as error:
        if not path_of(request.data) or "data.name" in request.asked:
            raise
        other = option("data", "folder:PATH")
        text = f"{error}, which the recipe names: give {other} for images in another place"
        raise FileNotFoundError(text) from error


def _check_classes(splits: Splits) -> None:
    """Raise ValueError if subfolders are to be classes and there are none."""
    if not splits.classes:
        raise ValueError(
            f"{option('labels', 'folders')} takes subfolders as classes, but {splits.name} does "
            "not have all of its images in two or more subfolders"
        )


def open_recipe(request: Request, splits: Splits, stored: Recipe | None = None) -> Recipe:
    """Return the recipe of a request whose data set is open.

    A run that is resumed keeps the defaults that it was started with, even if other defaults would
    suit the data or the device now.
    """
    if len(splits.pretrain) < 2:
        found = counted(len(splits.pretrain), "image")
        raise ValueError(f"{splits.name} has {found}, and training needs at least 2")
    own = own_data(request, splits)
    recipe = resolve(request, images=len(splits.pretrain), own=own)
    return recipe if stored is None or own is None else _resumed(recipe, stored, request)


def own_data(request: Request, splits: Splits) -> OwnData | None:
    """Return what the defaults depend on, None for a data set that has its own recipe."""
    if stands_for(request.data) in DATASETS:
        return None
    return facts(splits, str(request.get("train.device")))


def facts(splits: Splits, device: str = "auto") -> OwnData:
    """Return what the defaults for a data set without a recipe of its own depend on."""
    # a GPU that is named may be on another machine, which will train the run
    gpu = device in ("cuda", "mps") or pick_device(device).type != "cpu"
    size = splits.size
    if size >= LARGEST[True]:  # the largest value, and the value for shards of unknown size
        size = min(size, median_side(sampled_sizes(splits.pretrain)) or size)
    return OwnData(len(splits.pretrain), size, gpu)


def _check_labels(request: Request) -> None:
    """Raise ValueError if labels are asked for where there are no subfolders."""
    asked = request.get("data.labels") if "data.labels" in request.asked else "auto"
    if asked != "auto" and not request.data.startswith("folder:"):
        raise ValueError(
            f"{option('labels', asked)} applies to the subfolders of folder:PATH, but the data "
            f"set is {request.data}"
        )


def _labels(request: Request, stored: Recipe | None) -> Labels:
    """Return whether subfolders are classes, "auto" if the folder is to decide."""
    value: Labels = "auto"
    if "data.labels" in request.asked:
        value = request.get("data.labels")
    elif "data.name" not in request.asked and "data.labels" in request.given:
        value = request.get("data.labels")
    elif "data.name" not in request.asked and "data.workers" in request.given:
        value = "folders"  # a complete recipe of an earlier version
    return stored.data.labels if stored is not None and value == "auto" else value


def _decided(request: Request, labels: Labels, splits: Splits, stored: Recipe | None) -> Request:
    """Return the request with the decision in the place of "auto".

    A run that is resumed keeps the source of its own decision.
    """
    if not request.data.startswith("folder:"):
        asked = {key: value for key, value in request.asked.items() if key != "data.labels"}
        return request._replace(asked=asked)
    if labels == "auto":
        decision = "folders" if splits.classes else "none"
        settled = decision, Source(f"decided: {splits.labelling}")
    else:
        before = stored.sources if stored is not None else {}
        source = before.get("data.labels", Source("as the run was started with"))
        settled = labels, request.values.get("data.labels", ("", source))[1]
    return request._replace(asked=request.asked | {"data.labels": settled})


def _resumed(recipe: Recipe, stored: Recipe, request: Request) -> Recipe:
    """Return a recipe with the stored values of all settings that the user never gave.

    The order is that of the stored recipe, so that the file of a resumed run does not change.
    """
    before = stored.layer()
    values = {
        key: value
        for key, value in before.items()
        if key not in request.values and not isinstance(value[1], Given)
    }
    values |= {
        key: value
        for key, value in recipe.layer().items()
        if key in request.values or isinstance(before.get(key, value)[1], Given)
    }
    ordered = {key: values[key] for key in (*before, *values) if key in values}
    return assemble(ordered, recipe.name, recipe.replaced)
