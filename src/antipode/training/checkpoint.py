"""Checkpoints: everything that determines the rest of a run.

A checkpoint is written to a temporary file, flushed to the disk and renamed. Its checksum is
compared when it is read. Noise, the order of the images and views are functions of seed and step.
So the only random state to save is that of torch's own generators, which a backbone with dropout
may use.
"""

import errno
import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from antipode.files import atomic_write
from antipode.runs.folder import RunFolder

# The number of the format of checkpoints. Checkpoints without a number have format 1, whose content
# is otherwise the same.
FORMAT = 2


class DamagedCheckpoint(UserWarning):
    """A checkpoint could not be read, and an earlier one is used."""


def state(
    learner: nn.Module,
    optims: dict[str, torch.optim.Optimizer],
    step: int,
    health: dict[str, Any],
    images: int,
) -> dict[str, Any]:
    """Return the content of a checkpoint after `step` steps on a data set of `images` images.

    `health` is the state of the health monitor. It influences warnings, but no weights.
    """
    return {
        "format": FORMAT,
        "step": step,
        "images": images,
        "learner": learner.state_dict(),
        "optim": {name: optim.state_dict() for name, optim in optims.items()},
        "health": health,
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
        with atomic_write(_checksum_file(file)) as handle:
            handle.write(_digest(file).encode())
        _link_last(run, file)
    except OSError as error:
        raise _write_error(run, error) from error
    except RuntimeError as error:  # torch's writer hides the error of the system
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise _write_error(run, cause) from error
    for old in _files(run)[keep:]:
        _checksum_file(old).unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def point(run: RunFolder) -> None:
    """Link last.pt to the newest checkpoint.

    A process that was killed may have written the checkpoint but not the link.
    """
    files = _files(run)
    if not files:
        return
    newest = files[0]
    last = run.checkpoints / "last.pt"
    if not last.exists() or not (last.samefile(newest) or _digest(last) == _digest(newest)):
        _link_last(run, newest)


def load(run: RunFolder, device: torch.device) -> dict[str, Any] | None:
    """Return the content of the newest readable checkpoint, None if there are no checkpoints.

    Warns of every damaged checkpoint that is skipped. Raises ValueError if all checkpoints are
    damaged, or if the checkpoint was written by a newer version of antipode.
    """
    files = _files(run)
    if not files and (run.checkpoints / "last.pt").exists():
        files = [run.checkpoints / "last.pt"]
    reason = ""
    for file in files:
        try:
            content = _read(file, device)
        except Exception as error:  # a damaged file can raise almost anything
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if file != files[-1]:
                warnings.warn(
                    f"{file} is damaged ({reason}); the checkpoint before it is used instead",
                    DamagedCheckpoint,
                    stacklevel=2,
                )
        else:
            _check_format(content, file)
            return content
    if not files:
        return None
    which = files[0].name if len(files) == 1 else f"the oldest, {files[-1].name}"
    raise ValueError(
        f"none of the {len(files)} checkpoints in {run.checkpoints} can be read ({which}: {reason})"
    )


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
            optim.load_state_dict(content["optim"][name])
    except (KeyError, ValueError):
        raise ValueError(
            "the checkpoint was trained with different weights frozen: requires_grad differs"
        ) from None
    torch.set_rng_state(content["torch"].cpu())
    if content["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([generator.cpu() for generator in content["cuda"]])
    return int(content["step"])


def read(file: Path, device: torch.device) -> dict[str, Any]:
    """Return the content of one checkpoint file, whose format must be known."""
    content = _read(file, device)
    _check_format(content, file)
    return content


def _read(file: Path, device: torch.device) -> dict[str, Any]:
    """Return the content of a checkpoint file; raise an exception of any type if it is damaged."""
    checksum = _checksum_file(file)
    if checksum.exists() and checksum.read_text() != _digest(file):
        raise ValueError("its checksum is wrong")
    content: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    return content


def _check_format(content: dict[str, Any], file: Path) -> None:
    """Raise ValueError if a checkpoint has a newer format than this version can read."""
    number = int(content.get("format", 1))
    if number > FORMAT:
        raise ValueError(
            f"{file} was written by a newer version of antipode (format {number}, this one reads "
            f"up to {FORMAT}): update antipode"
        )


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
