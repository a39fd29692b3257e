"""Decide whether the subfolders of a folder of images are classes.

People sort images into folders by class, but also by date, camera and batch. `decide` looks at the
names of the subfolders and at the number of images in each.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple, get_args

from antipode.wording import option

Labels = Literal["auto", "folders", "none"]

FEWEST = 2  # classes
MOST = 1000
IMAGES = 5  # in each class
LOOSE = "directly in the folder"

# words that say that a number counts portions of images, as in `batch3`
PORTIONS = (
    *("album", "archive", "backup", "batch", "burst", "cam", "camera", "card", "chunk", "clip"),
    *("copy", "day", "dir", "directory", "disc", "disk", "export", "film", "folder", "frame"),
    *("frames", "img", "image", "images", "import", "job", "month", "page", "part", "photo"),
    *("photos", "pic", "pics", "picture", "pictures", "roll", "run", "scan", "sequence", "seq"),
    *("session", "set", "shard", "shoot", "take", "upload", "vid", "video", "vol", "volume"),
    *("week", "year", "dsc", "dscf", "dscn", "dji", "gopr", "mvi", "pxl", "sam", "wa"),
)
# words that say that a number counts classes, as in `class_3`
CLASSES = (
    *("category", "cat", "class", "cls", "cluster", "grade", "kind", "label", "species", "type"),
)

MONTH = (
    r"(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sep(t(ember)?)?|"
    r"oct(ober)?|nov(ember)?|dec(ember)?)"
)
YEAR = r"(19|20)\d\d"
SIGN = r"[-_. ]"
DATES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{YEAR}({SIGN}?(0?[1-9]|1[0-2])({SIGN}?[0-3]?\d)?)?({SIGN}.*|T\d.*)?",  # 2024-01-31 Rome
        rf"[0-3]?\d{SIGN}[0-3]?\d{SIGN}({YEAR}|\d\d)",  # 31.01.2024
        rf"(0?[1-9]|1[0-2]){SIGN}{YEAR}",  # 01-2024
        rf"(\d\d?{SIGN}?)?{MONTH}({SIGN}?({YEAR}|\d\d?))?",  # 01 January, Jan 2024
        rf"{YEAR}{SIGN}?{MONTH}",  # 2024 January
    )
]
# DCIM, and the folders that the cameras' standard (DCF) puts into it: three digits and five signs
CAMERA = re.compile(r"DCIM|\d{3}(?=.*[A-Z_])[A-Z0-9_]{5}")
NUMBERED = re.compile(r"(.*?)[-_. (#]*(\d+)\)?")


class Decision(NamedTuple):
    """Whether subfolders are classes, and why."""

    labels: Literal["folders", "none"]
    reason: str  # the rest of a sentence that starts with "no classes: " or "classes: "


def check_labels(value: object) -> Labels:
    """Return the way to decide about labels; raise ValueError if there is no such way."""
    if value not in get_args(Labels):
        raise ValueError(f"labels must be one of {', '.join(get_args(Labels))}, not {value!r}")
    return value  # type: ignore[return-value]


def decide(names: Iterable[str]) -> Decision:
    """Return whether the subfolders of a folder are classes, from the paths of its images.

    They are if all images are in 2 to 1,000 subfolders with at least 5 images each, unless half of
    the subfolders or more have names like dates, camera folders or numbers in a row.
    """
    return decide_by_counts(
        Counter(name.partition("/")[0] if "/" in name else "" for name in names)
    )


def decide_by_counts(images: Mapping[str, int]) -> Decision:
    """Return the decision from the number of images by subfolder; the folder itself is ""."""
    counts = dict(images)
    loose = counts.pop("", 0)
    if not counts:
        return Decision("none", "there are no subfolders")
    if loose:
        beside = f"{loose:,} image{'s are' if loose > 1 else ' is'} {LOOSE}"
        return Decision("none", f"{beside}, next to {_folders(len(counts))}")
    if not FEWEST <= len(counts) <= MOST:
        bounds = f"classes are {FEWEST} to {MOST:,} subfolders"
        return Decision("none", f"there {_folders(len(counts), 'is ', 'are ')}, and {bounds}")
    smallest = min(counts, key=lambda name: counts[name])
    if counts[smallest] < IMAGES:
        few = f"subfolder {smallest} has only {counts[smallest]} of the {IMAGES} images"
        return Decision("none", f"{few} that a class needs")
    doubt = unlike_classes(counts)
    if doubt:
        return Decision("none", doubt)
    return Decision("folders", f"{_folders(len(counts))} ({_some(sorted(counts))})")


def labels_note(classes: Collection[object], reason: str, forced: bool = False) -> str:
    """Return a sentence on the classes of a folder, and how to decide otherwise.

    Args:
        classes: the classes.
        reason: the reason of a decision, empty if there was none.
        forced: whether the user has decided.
    """
    because = f": {reason}" if reason else ""
    if classes:
        other = f"; {option('labels', 'none')} treats subfolders as plain folders"
        return f"{len(classes):,} classes{because}{'' if forced else other}."
    other = f"; {option('labels', 'folders')} takes subfolders as classes"
    if LOOSE in reason:
        other = "; to use the subfolders as classes, move these images into one of them"
    elif "no subfolders" in reason or "is 1 subfolder" in reason:
        other = ""
    return f"No classes{because}{'' if forced else other}."


def unlike_classes(folders: Collection[str]) -> str:
    """Return how many subfolders have names that classes do not have, empty if fewer than half."""
    kind, alike = _unlike_classes(folders)
    if 2 * len(alike) < len(folders):
        return ""
    part = "" if len(alike) == len(folders) else f"{len(alike):,} of "
    return f"{part}{_folders(len(folders))} have names like {kind} ({_some(alike)})"


def _folders(count: int, is_: str = "", are: str = "") -> str:
    """Return "1 subfolder" or "2 subfolders", after a verb that fits."""
    return f"{is_}1 subfolder" if count == 1 else f"{are}{count:,} subfolders"


def _some(names: list[str]) -> str:
    """Return the first names and dots for the others."""
    return ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])


def _unlike_classes(folders: Collection[str]) -> tuple[str, list[str]]:
    """Return the names that do not look like classes, and what most of them look like."""
    names = sorted(folders)
    kinds = {
        "dates": [name for name in names if any(date.fullmatch(name) for date in DATES)],
        "camera folders": [name for name in names if CAMERA.fullmatch(name)],
        "numbers in a row": _in_a_row(names),
    }
    common = max(kinds, key=lambda kind: len(kinds[kind]))
    return common, sorted({name for some in kinds.values() for name in some})


def _in_a_row(names: list[str]) -> list[str]:
    """Return the names that number portions of the images: `batch3`, `IMG_0001`, or `1`, `2`, `3`.

    A word for portions needs no other name beside it. After any other word, the numbers must be in
    a row: more than two thirds of those from the smallest to the largest must be there.
    """
    numbers: dict[str, dict[int, str]] = defaultdict(dict)
    for name in names:
        parts = NUMBERED.fullmatch(name)
        if parts:
            numbers[parts[1].lower()][int(parts[2])] = name
    found: list[str] = []
    for word, group in numbers.items():
        last = re.split(r"[^a-z]+", word)[-1]
        if last in CLASSES:
            continue
        span = max(group) - min(group) + 1
        if last in PORTIONS or 2 <= span < 1.5 * len(group):
            found += group.values()
    return found
