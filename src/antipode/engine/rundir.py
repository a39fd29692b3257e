"""The run folder: the interface between training, evaluation and report. All is written aside and renamed."""

import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antipode.files import whole


class RunDir:
    """recipe.json, env.json, metrics.jsonl, checkpoints/, backbone.safetensors, scores.json and what is added later."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.checkpoints = self.path / "checkpoints"

    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "recipe.json").exists()

    def begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return any(self.checkpoints.glob("*.pt"))

    def clear(self) -> None:
        """Remove a run, and nothing else that lies in the folder."""
        for file in [*self.path.glob("*.json"), *self.path.glob("*.jsonl")]:
            file.unlink(missing_ok=True)
        for name in ("backbone.safetensors", "report.html"):
            (self.path / name).unlink(missing_ok=True)
        for folder in (self.checkpoints, self.path / "tensorboard"):
            shutil.rmtree(folder, ignore_errors=True)

    def write_json(self, name: str, value: Any) -> None:
        """Replace a JSON file of the run, whole or not at all."""
        with whole(self.path / name) as file:
            file.write((json.dumps(value, indent=1) + "\n").encode())

    def read_json(self, name: str) -> Any:
        """The content of a JSON file of the run, {} where there is none."""
        file = self.path / name
        try:
            return json.loads(file.read_text()) if file.exists() else {}
        except ValueError as error:
            raise ValueError(f"{file} is not JSON: {error}") from error

    def record(self, row: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({name: finite(value) for name, value in row.items()}) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All whole lines of metrics.jsonl; a line that a crash cut short is left out."""
        file = self.path / "metrics.jsonl"
        return list(_rows(file)) if file.exists() else []

    def rewind(self, step: int) -> None:
        """Forget what was recorded from `step` on: a resumed run records it again."""
        rows = self.metrics()
        kept = [row for row in rows if row.get("step", -1) < step]
        if len(kept) < len(rows) or self._cut_short():
            with whole(self.path / "metrics.jsonl") as file:
                file.write("".join(json.dumps(row) + "\n" for row in kept).encode())

    def _cut_short(self) -> bool:
        file = self.path / "metrics.jsonl"
        return file.exists() and file.stat().st_size > 0 and not file.read_bytes().endswith(b"\n")


def finite(value: Any) -> Any:
    """The value, or None for a number that JSON does not know."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def environment(device: str) -> dict[str, Any]:
    """Versions, device, command and commit: what it takes to repeat a run."""
    import torch  # noqa: PLC0415
    import torchvision  # noqa: PLC0415

    import antipode  # noqa: PLC0415

    return {
        "antipode": antipode.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "command": sys.argv,
    }


def _commit() -> str | None:
    """The commit of the package's own checkout, with a + where it has changes; None where it was installed."""
    home = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(home), "describe", "--always", "--dirty=+", "--abbrev=40"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
