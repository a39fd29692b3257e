"""Checkpoints: everything that determines the rest of a run.

A checkpoint is written to a temporary file, flushed to the disk and renamed. Its checksum is
compared when it is read. Noise, the order of the images and views are functions of seed and step.
So the only random state to save is that of torch's own generators, which a backbone with dropout
may use.
"""

import errno
import hashlib
import os
import pickle
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from antipode.data.sources.stamp import Stamp
from antipode.files import atomic_write
from antipode.runs.folder import WEIGHTS, RunFolder
from antipode.training.checkpoint_check import NETWORK, WHOLE, check_content, check_type

# The number of the format of checkpoints. Checkpoints without a number have format 1, whose content
# is otherwise the same.
FORMAT = 2


class DamagedCheckpoint(UserWarning):
    """A checkpoint could not be read, and an earlier one is used."""


class NewerVersion(ValueError):
    """A checkpoint was written by a newer version of antipode."""


def state(
    learner: nn.Module,
    optims: dict[str, torch.optim.Optimizer],
    step: int,
    health: dict[str, Any],
    stamp: Stamp,
    skipped: int = 0,
) -> dict[str, Any]:
    """Return the content of a checkpoint after `step` steps on the images of a `stamp`.

    `health` is the state of the health monitor. It influences warnings, but no weights. `skipped`
    of the steps had a loss or gradient that was not finite.
    """
    return {
        "format": FORMAT,
        "step": step,
        "images": stamp["images"],
        "stamp": stamp,
        "learner": learner.state_dict(),
        "optim": {name: optim.state_dict() for name, optim in optims.items()},
        "health": health,
        "skipped": skipped,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def save(run: RunFolder, content: dict[str, Any], keep: int) -> None:
    """Write a checkpoint, link last.pt to it, and delete all but the newest `keep` checkpoints.

    Raises OSError if the checkpoint cannot be written.
    """
    file = run.checkpoints / f"step-{content['step']:09d}.pt"
    try:
        with atomic_write(file) as handle:
            torch.save(content, handle)
        _write_checksum(file)
        _link_last(run, file)
    except OSError as error:
        raise _write_error(run, error) from error
    except RuntimeError as error:  # torch's writer hides the error of the system
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise _write_error(run, cause) from error
    # a file of a later step is a damaged one, in place of which an earlier one was resumed
    _delete(old for old in _files(run) if old.name > file.name)
    _delete(_files(run)[keep:])


def complete(run: RunFolder, file: Path, keep: int) -> None:
    """Do what a killed process has left undone, for the checkpoint `file` that is resumed.

    Writes its checksum, links last.pt to it, and deletes all but the newest `keep` checkpoints. A
    run that has ended loses none, because it may have been told to keep more.
    """
    last = run.checkpoints / "last.pt"
    if file == last:  # all others are damaged
        return
    if not _checksum_file(file).exists():
        _write_checksum(file)
    if not last.exists() or not (last.samefile(file) or _digest(last) == _digest(file)):
        _link_last(run, file)
    if not (run.path / WEIGHTS).exists():
        _delete([old for old in _files(run) if old.name <= file.name][keep:])


def _delete(files: Iterable[Path]) -> None:
    """Delete checkpoints with their checksums."""
    for file in list(files):
        _checksum_file(file).unlink(missing_ok=True)
        file.unlink(missing_ok=True)


def load(run: RunFolder, device: torch.device) -> dict[str, Any] | None:
    """Return the content of the newest checkpoint whose network can be read, None without any.

    Warnings and errors are those of `newest`.
    """
    found = newest(run, device, NETWORK)
    return None if found is None else found[0]


def newest(
    run: RunFolder, device: torch.device, needed: tuple[str, ...] = WHOLE
) -> tuple[dict[str, Any], Path] | None:
    """Return content and file of the newest readable checkpoint, None if there are no checkpoints.

    `needed` are the entries that it must have. Warns of every damaged checkpoint that is skipped.
    Raises ValueError if all checkpoints are damaged, or if the checkpoint was written by a newer
    version of antipode.
    """
    files = _candidates(run)
    reason = ""
    for file in files:
        try:
            return _read(file, device, needed), file
        except NewerVersion:
            raise
        except Exception as error:  # a damaged file can raise almost anything
            reason = _reason(error)
            if file != files[-1]:
                warnings.warn(
                    f"{file} is damaged ({reason}); the checkpoint before it is used instead",
                    DamagedCheckpoint,
                    stacklevel=3,
                )
    if not files:
        return None
    which = files[0].name if len(files) == 1 else f"the oldest, {files[-1].name}"
    raise ValueError(
        f"none of the {len(files)} checkpoints in {run.checkpoints} can be read ({which}: {reason})"
    )


def saved_steps(run: RunFolder) -> int | None:
    """Return the number of steps in the newest checkpoint, from its name; None if unknown."""
    numbers = (file.stem.removeprefix("step-") for file in _files(run))
    return next((int(number) for number in numbers if number.isdigit()), None)


def restore(
    content: dict[str, Any], learner: nn.Module, optims: dict[str, torch.optim.Optimizer]
) -> int:
    """Load a checkpoint's content into learner, optimisers and torch's generators.

    Returns the number of the next step.
    """
    try:
        learner.load_state_dict(content["learner"])
    except RuntimeError as error:  # torch lists all differing names; the first one is enough
        lines = [line.strip() for line in str(error).splitlines()]
        first = "".join(lines[1:2])[:200]
        raise ValueError(f"the checkpoint belongs to another network ({first})") from None
    try:
        for name, optim in optims.items():
            _load_optimiser(optim, content["optim"][name])
    except (KeyError, ValueError):
        raise ValueError(
            "the checkpoint was trained with different weights frozen: requires_grad differs"
        ) from None
    except (TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"the checkpoint's optimiser is damaged ({_reason(error)})") from None
    try:
        torch.set_rng_state(content["torch"].cpu())
        if content["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([generator.cpu() for generator in content["cuda"]])
    except (TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"the checkpoint's generators are damaged ({_reason(error)})") from None
    return int(content["step"])


def _load_optimiser(optim: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the state of an optimiser; raise ValueError if its tensors do not fit the weights."""
    before = _shapes(optim)
    optim.load_state_dict(state)
    if _shapes(optim) != before:
        raise ValueError("the state has other tensors")


def _shapes(optim: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the shapes of the tensors that an optimiser keeps for each parameter."""
    parameters = [p for group in optim.param_groups for p in group["params"]]
    return [{name: value.shape for name, value in optim.state[p].items()} for p in parameters]


def read(file: Path, device: torch.device) -> dict[str, Any]:
    """Return the content of one checkpoint file; raise ValueError if it cannot be read."""
    try:
        return _read(file, device, NETWORK)
    except (NewerVersion, OSError):
        raise
    except Exception as error:  # a damaged file can raise almost anything
        raise ValueError(f"{file} cannot be read ({_reason(error)})") from error


def _read(file: Path, device: torch.device, needed: tuple[str, ...]) -> dict[str, Any]:
    """Return the content of a checkpoint file; raise an exception of any type if it is damaged."""
    known = _checksums(file)
    if known and _digest(file) not in known:
        raise ValueError("its checksum is wrong")
    with warnings.catch_warnings():
        # torch advises to unpickle foreign files without its checks
        warnings.filterwarnings("ignore", message=".*weights_only")
        content: Any = torch.load(file, map_location=device, weights_only=True)
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__} and not the entries of a checkpoint")
    _check_format(content, file)
    check_content(content, needed)
    return content


def _check_format(content: dict[str, Any], file: Path) -> None:
    """Raise NewerVersion if a checkpoint has a newer format than this version can read."""
    number = content.get("format", 1)
    check_type("format", number, int)
    if number > FORMAT:
        raise NewerVersion(
            f"{file} was written by a newer version of antipode (format {number}, this one reads "
            f"up to {FORMAT}): update antipode"
        )


def _reason(error: Exception) -> str:
    """Return why a checkpoint cannot be read, in one line.

    torch's own sentence about objects in a file advises to load them, which would run the code of
    whoever wrote the file.
    """
    text = str(error)
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text:
        return "it is damaged, or it holds objects that are not part of a checkpoint"
    return text.splitlines()[0][:200] if text.strip() else type(error).__name__


def _candidates(run: RunFolder) -> list[Path]:
    """Return the files to read, best first: the newest checkpoint, last.pt, older checkpoints.

    last.pt is left out if it is a link to one of the others.
    """
    files = _files(run)
    last = run.checkpoints / "last.pt"
    if last.exists() and not any(last.samefile(file) for file in files):
        files.insert(1, last)
    return files


def _checksums(file: Path) -> set[str]:
    """Return the checksums that a checkpoint may have; empty if none is known.

    last.pt is a copy of one of the others if the file system has no links.
    """
    if file.name == "last.pt":
        return {other.read_text() for other in file.parent.glob("step-*.sum")}
    checksum = _checksum_file(file)
    return {checksum.read_text()} if checksum.exists() else set()


def _files(run: RunFolder) -> list[Path]:
    """Return the checkpoint files, newest first."""
    return sorted(run.checkpoints.glob("step-*.pt"), reverse=True)


def _link_last(run: RunFolder, file: Path) -> None:
    """Make last.pt a hard link to `file`, or a copy if the file system has no hard links."""
    temporary = run.checkpoints / ".last.tmp"
    temporary.unlink(missing_ok=True)
    try:
        os.link(file, temporary)
    except OSError:
        temporary.write_bytes(file.read_bytes())
    temporary.replace(run.checkpoints / "last.pt")


def _write_checksum(file: Path) -> None:
    """Write the checksum of a checkpoint to a file beside it."""
    with atomic_write(_checksum_file(file)) as handle:
        handle.write(_digest(file).encode())


def _checksum_file(file: Path) -> Path:
    """Return the path of the file that holds the checksum of a checkpoint."""
    return file.with_suffix(".sum")


def _digest(file: Path) -> str:
    """Return the SHA-256 digest of a file."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _write_error(run: RunFolder, error: Exception) -> Exception:
    """Return an error that says why a checkpoint could not be written, such as a full disk."""
    free = 1 << 40  # bytes; if unknown, more than enough
    if hasattr(os, "statvfs"):
        disk = os.statvfs(run.path)
        free = disk.f_bavail * disk.f_frsize
    if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT) and free > 1 << 26:
        if isinstance(error, OSError):
            return error
        reason = (str(error).splitlines() or ["?"])[0][:200]
        return OSError(errno.EIO, f"no checkpoint could be written to {run.checkpoints} ({reason})")
    files = _files(run)
    newest = f"the newest complete one is {files[0].name}" if files else "there is none yet"
    return OSError(
        errno.ENOSPC, f"the disk of {run.path} is full: no checkpoint could be written, {newest}"
    )
