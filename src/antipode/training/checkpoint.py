"""Checkpoints: everything that decides the future, written aside, synced, renamed, and checked when read.

Noise, order and views are functions of seed and step, so there is no generator to save but torch's own, which a
backbone with dropout may use.
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


class DamagedCheckpoint(UserWarning):
    """A checkpoint could not be read and an earlier one was taken."""


def state(
    learner: nn.Module,
    optims: dict[str, torch.optim.Optimizer],
    step: int,
    health: dict[str, Any],
    images: int,
) -> dict[str, Any]:
    """What a checkpoint holds after `step` steps on so many images; `health` decides no weight, only what is said."""
    return {
        "step": step,
        "images": images,
        "learner": learner.state_dict(),
        "optim": {name: optim.state_dict() for name, optim in optims.items()},
        "health": health,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def save(run: RunFolder, content: dict[str, Any], keep: int) -> None:
    """Write a checkpoint, point last.pt at it, drop all but the last `keep`."""
    file = run.checkpoints / f"step-{content['step']:09d}.pt"
    try:
        with atomic_write(file) as handle:
            torch.save(content, handle)
        with atomic_write(file.with_suffix(".sum")) as handle:
            handle.write(_digest(file).encode())
        _point(run.checkpoints / "last.pt", file)
    except OSError as error:
        raise _full(run, error) from error
    except RuntimeError as error:  # torch's writer hides the system's own error
        raise _full(
            run, error.__context__ if isinstance(error.__context__, OSError) else error
        ) from error
    for old in _files(run)[keep:]:
        old.with_suffix(".sum").unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def point(run: RunFolder) -> None:
    """Point last.pt at the newest checkpoint, which a process that was killed may not have come to."""
    files = _files(run)
    last = run.checkpoints / "last.pt"
    same = (
        bool(files)
        and last.exists()
        and (last.samefile(files[0]) or _digest(last) == _digest(files[0]))
    )
    if files and not same:
        _point(last, files[0])


def load(run: RunFolder, device: torch.device) -> dict[str, Any] | None:
    """The newest whole checkpoint, or None where there is none; a damaged one is named in a warning."""
    files = _files(run)
    files = files or [path for path in [run.checkpoints / "last.pt"] if path.exists()]
    reason = ""
    for file in files:
        try:
            if file.with_suffix(".sum").exists() and file.with_suffix(
                ".sum"
            ).read_text() != _digest(file):
                raise ValueError("its checksum is wrong")
            content: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
            return content
        except Exception as error:  # whatever a damaged file provokes
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if file != files[-1]:
                text = f"{file} is damaged ({reason}); going back to the checkpoint before it"
                warnings.warn(text, DamagedCheckpoint, stacklevel=2)
    if files:
        which = (
            f"{files[0].name}: {reason}"
            if len(files) == 1
            else f"the last, {files[-1].name}: {reason}"
        )
        raise ValueError(
            f"none of the {len(files)} checkpoints in {run.checkpoints} can be read ({which})"
        )
    return None


def restore(
    content: dict[str, Any], learner: nn.Module, optims: dict[str, torch.optim.Optimizer]
) -> int:
    """Put a checkpoint's content where it belongs; returns the step to go on with."""
    try:
        learner.load_state_dict(content["learner"])
    except RuntimeError as error:  # torch lists every name
        first = [line.strip() for line in str(error).splitlines()][1:2]
        raise ValueError(f"the checkpoint is of another network ({''.join(first)[:200]})") from None
    try:
        for name, optim in optims.items():
            optim.load_state_dict(content["optim"][name])
    except (KeyError, ValueError):
        raise ValueError(
            "the checkpoint was trained with other weights frozen: requires_grad differs"
        ) from None
    torch.set_rng_state(content["torch"].cpu())
    if content["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([generator.cpu() for generator in content["cuda"]])
    return int(content["step"])


def _files(run: RunFolder) -> list[Path]:
    """Checkpoints, newest first."""
    return sorted(run.checkpoints.glob("step-*.pt"), reverse=True)


def _point(name: Path, file: Path) -> None:
    """last.pt: another name of the newest checkpoint, or a copy where the file system knows no links."""
    aside = name.with_name(".last.tmp")
    aside.unlink(missing_ok=True)
    try:
        os.link(file, aside)
    except OSError:
        aside.write_bytes(file.read_bytes())
    aside.replace(name)


def _digest(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _full(run: RunFolder, error: Exception) -> Exception:
    free = (
        os.statvfs(run.path).f_bavail * os.statvfs(run.path).f_frsize
        if hasattr(os, "statvfs")
        else 1 << 40
    )
    if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT) and free > 1 << 26:
        plain = f"no checkpoint could be written into {run.checkpoints} ({(str(error).splitlines() or ['?'])[0][:200]})"
        return error if isinstance(error, OSError) else OSError(errno.EIO, plain)
    files = _files(run)
    left = f"the last whole one is {files[0].name}" if files else "there is none yet"
    return OSError(
        errno.ENOSPC, f"the disk of {run.path} is full: no checkpoint could be written, {left}"
    )
