"""The images that a run was trained on: where they are, and whether they are still the same.

The images are recognised by the stamp in images.json, which training writes for data sets that are
named by a path. Runs of earlier versions have none, so their images are not checked.
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from antipode import dist
from antipode.data.sources.located import is_relative, located, path_of
from antipode.data.sources.splits import Splits
from antipode.data.sources.stamp import Stamp, difference, remaining, stamp
from antipode.names import printable
from antipode.paths import absolute
from antipode.runs.folder import IMAGES, RunFolder
from antipode.wording import counted, option

ENOUGH = 0.5  # if fewer of the sampled images are left, they are not the images of training


class NotFound(FileNotFoundError):
    """The images of a run are not where they were."""


class OtherImages(ValueError):
    """A place holds other images than those of training."""


class OwnImages(NamedTuple):
    """The images that a run was trained on, which can be opened by name.

    Args:
        folder: the run folder.
        name: the name in the recipe.
        directory: the folder in which the run was started, None if unknown.
    """

    folder: RunFolder
    name: str
    directory: Path | None

    @property
    def place(self) -> str:
        """The name with the path at which the images are found now."""
        return located(self.name, self.directory)

    def named(self, splits: Splits) -> Splits:
        """Return splits that were opened at the place under the name in the recipe."""
        return replace(splits, name=self.name) if splits.name == self.place else splits

    def not_found(self, error: FileNotFoundError) -> FileNotFoundError:
        """Return the error for missing images, with what the run knows about their place.

        An error about a data set without a path is returned as it is.
        """
        if not path_of(self.name):
            return error
        return NotFound(
            printable(f"{error}: {self.folder.path} was trained on {self._origin()}; {_advice()}")
        )

    def check(self, splits: Splits) -> None:
        """Raise OtherImages if the images at the place are not those of training.

        Warns if there are other images beside them, or if some are missing.
        """
        old = self.folder.read_object(IMAGES)
        new = stamp(splits.pretrain, contents=False) if old else {}
        text = difference(_as_seen(old, new), new)
        if not text:
            return
        then, now = _count(old.get("images")), _count(new["images"])
        why = f" ({text})" if then == now else ""  # if numbers differ, so do names and contents
        sources = [splits.pretrain, *([] if splits.test is None else [splits.test])]
        if remaining(old.get("sample"), sources) < ENOUGH:
            sentence = f"{self.folder.path} was trained on {then} of {self._origin()}, and "
            sentence += f"{absolute(path_of(self.place))} has {now} of another data set{why}"
            raise OtherImages(printable(f"{sentence}; {_advice()}"))
        if dist.first():
            text = f"{self.name} has changed since {self.folder.path} was trained on it: {then} "
            warnings.warn(printable(f"{text}then, {now} now{why}"), stacklevel=4)

    def _origin(self) -> str:
        """Return the name in the recipe, and where its path starts if it is relative."""
        if not is_relative(path_of(self.name)):
            return self.name
        return f"{self.name} in {self.directory or 'a folder that it did not record'}"


def _advice() -> str:
    return f"evaluate images in another place with {option('data', 'folder:PATH')}"


def _as_seen(old: dict[str, Any], new: Stamp) -> dict[str, Any]:
    """Return an old stamp without what cannot be compared.

    Your own module may have seen grey images in memory as colour images.
    """
    before, now = old.get("shape"), new.get("shape")
    if isinstance(before, list) and now and (before[:1], now[0]) == ([3], 1):
        return {key: value for key, value in old.items() if key not in ("shape", "pixels")}
    return old


def _count(images: object) -> str:
    """Return the number of images of a stamp, which may come from a file of someone else."""
    return counted(images, "training image") if isinstance(images, int) else "training images"
