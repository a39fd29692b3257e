"""Predict the classes of images, and write them as a table. Shapes: N images, C classes."""

import copy
import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TextIO

import torch
from torch import Tensor

from antipode.data.loader import in_order
from antipode.data.progress import bar
from antipode.data.sources.catalog import Given, load
from antipode.data.sources.source import (
    Decoded,
    Source,
    folder_prefix,
    leaving_out,
    left_out,
)
from antipode.devices import pick_device
from antipode.files import atomic_write
from antipode.finetuning.model import Classifier, load_classifier
from antipode.paths import absolute
from antipode.runs.feature_table import import_arrow
from antipode.runs.images import fitting

SUFFIXES = (".csv", ".parquet")
COLUMNS = ("name", "class", "probability")


class Predictions(NamedTuple):
    """The predicted classes of images.

    Args:
        names: the names of the images.
        classes: the names of the classes.
        probabilities: the probability of each class for each image, float32 (N,C).
        left_out: the number of images that could not be read.
    """

    names: list[str]
    classes: list[str]
    probabilities: Tensor
    left_out: int = 0

    @property
    def predicted(self) -> list[str]:
        """The most probable class of each image."""
        return [self.classes[index] for index in self.probabilities.argmax(1).tolist()]

    @property
    def confidence(self) -> Tensor:
        """The probability (N,) of the most probable class."""
        return self.probabilities.amax(1)

    def __repr__(self) -> str:
        return f"Predictions({len(self.names)} images, {len(self.classes)} classes)"


def predict(
    model: Classifier | str | Path,
    data: Given,
    out: str | Path | None = None,
    *,
    device: str = "auto",
) -> Predictions:
    """Return the classes of all images of a data set, and write them to `out` if it is given.

    The images need no labels. Images that cannot be read are left out.

    Args:
        model: a classifier, or the folder that `finetune` has written.
        data: name of a data set, or what else `pretrain` takes as data.
        out: .csv or .parquet file to write.
        device: "auto", "cpu", "cuda" or "mps".
    """
    file = None if out is None else absolute(out)
    if file is not None:
        check(file)
    where = pick_device(device)
    given = model if isinstance(model, Classifier) else load_classifier(model)
    # subfolders need not be classes, and so no warning is given if they cannot be
    splits = fitting(str(given.path), given.backbone, load(data, labels="none"))
    net = copy.deepcopy(given).to(where).eval()  # the caller's model stays on its device
    sources = {"train": splits.train, "test": splits.test}
    present = {part: leaving_out(one) for part, one in sources.items() if one is not None}
    rows = torch.cat([_probabilities(net, source, where) for source in present.values()])
    result = _readable(present, net.classes, rows)
    if file is not None:
        write(file, result)
    return result


@torch.no_grad()
def _probabilities(net: Classifier, source: Source, device: torch.device) -> Tensor:
    """Return the probabilities (N,C) of the images of a source, in float32 on the CPU."""
    view = net.transform.view.to(device)
    rows = []
    with bar(len(source), "predictions") as done:
        for images, ids in in_order(source, view, device=device):
            rows.append(net(images).float().softmax(1).cpu())
            done(len(ids))
    return torch.cat(rows)


def _readable(sources: Mapping[str, Source], classes: list[str], rows: Tensor) -> Predictions:
    """Return the predictions of the images that could be read.

    The images of a folder are sorted by name, whether or not some were held out for testing.
    """
    prefixes = {part: folder_prefix(getattr(one, "read", None)) for part, one in sources.items()}
    several = len(set(prefixes.values())) > 1  # the splits are folders of their own
    names: list[str] = []
    kept: list[bool] = []
    for part, source in sources.items():
        if isinstance(source, Decoded):
            names += [f"{prefixes[part] if several else ''}{name}" for name in source.names]
            kept += [name not in source.failed for name in source.names]
        else:
            names += [f"{part}/{number}" for number in range(len(source))]
            kept += [True] * len(source)
    order = [at for at in range(len(names)) if kept[at]]
    if all(isinstance(source, Decoded) for source in sources.values()):
        order.sort(key=names.__getitem__)
    texts = [names[at].encode("utf-8", "backslashreplace").decode() for at in order]
    lost = sum(map(left_out, sources.values()))
    return Predictions(texts, classes, rows[torch.tensor(order, dtype=torch.int64)], lost)


# Files


def check(path: Path) -> None:
    """Raise ValueError if predictions cannot be written to a file of this name."""
    if path.suffix not in SUFFIXES or path.is_dir():
        raise ValueError(
            f"predictions are written to *{' or *'.join(SUFFIXES)} files, not to {path.name!r}"
        )
    if path.suffix == ".parquet":
        import_arrow("a .csv file")


def write(path: Path, predictions: Predictions) -> None:
    """Write predictions to a file, atomically.

    The columns are the name of the image, its class, the probability of the class, and the
    probability of each class under the name of the class.
    """
    check(path)
    header = [*COLUMNS, *map(_column, predictions.classes)]
    with atomic_write(path) as file:
        if path.suffix == ".parquet":
            arrow, parquet = import_arrow("a .csv file")
            columns = [
                predictions.names,
                predictions.predicted,
                predictions.confidence.numpy(),
                *predictions.probabilities.T.contiguous().numpy(),
            ]
            table = arrow.Table.from_arrays([arrow.array(column) for column in columns], header)
            parquet.write_table(table, file)
            return
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        _write_csv(text, header, predictions)
        text.flush()
        text.detach()  # `atomic_write` closes the file


def _write_csv(file: TextIO, header: list[str], predictions: Predictions) -> None:
    """Write predictions as CSV, with six significant digits."""
    lines = csv.writer(file)
    lines.writerow(header)
    rows = predictions.probabilities
    for at, (name, label) in enumerate(zip(predictions.names, predictions.predicted, strict=True)):
        values = rows[at].tolist()
        lines.writerow([name, label, *(f"{value:.6g}" for value in (max(values), *values))])


def _column(name: str) -> str:
    """Return the name of the column of a class, which must differ from the first columns."""
    return f"{name} (class)" if name in COLUMNS else name
