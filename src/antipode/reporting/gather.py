"""A run folder as one record: what its JSON files say. Nothing here needs torch, images or a backbone."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antipode.data.progress import track
from antipode.reporting.curves import number
from antipode.runs.folder import RunFolder

MANY = 20  # reading fewer runs takes no time


@dataclass(frozen=True)
class Record:
    """What is on the disk of a run; an empty dict or list stands for a file that is not there."""

    path: Path
    name: str
    recipe: dict[str, Any]  # values by dotted key
    sources: dict[str, str]
    env: dict[str, Any]
    rows: list[dict[str, Any]]
    scores: dict[str, dict[str, Any]]
    analysis: dict[str, Any]
    finished: bool  # there is a backbone

    def value(self, key: str, otherwise: Any = None) -> Any:
        """A value of the recipe."""
        return self.recipe.get(key, otherwise)

    @property
    def method(self) -> str:
        """The preset, or what a folder without a recipe is."""
        return str(self.value("method.name", "no recipe"))

    @property
    def epochs_done(self) -> int:
        """Whole epochs that are on the record."""
        if self.finished:
            return int(self.value("train.epochs", 0))
        return max((int(row["epoch"]) for row in self.rows if number(row.get("epoch"))), default=0)

    @property
    def per_epoch(self) -> float | None:
        """Steps of an epoch, as the record has them: exact where a run has ended."""
        steps = [
            (row["step"], row["epoch"])
            for row in self.rows
            if number(row.get("step")) and number(row.get("epoch"))
        ]
        if not steps:
            return None
        step, epoch = steps[-1]
        if self.finished:
            return float((step + 1) / (epoch + 1))
        return float(min((s / e for s, e in steps if e), default=step + 1))

    @property
    def seconds(self) -> float | None:
        """Time spent on the steps, without evaluations between them: the sum of what the log's speeds say."""
        batch, before, seconds = self.value("train.batch"), -1, 0.0
        for row in self.rows:
            speed, step = row.get("images_per_second", 0), row.get("step", 0)
            if speed and all(map(number, (speed, step, batch))):
                seconds += max(0, step - before) * batch / speed
                before = step
        return seconds or None


def gather(paths: Sequence[Path]) -> list[Record]:
    """Records of run folders, each once, under the shortest names that tell them apart."""
    homes = list(dict.fromkeys(path.expanduser().resolve() for path in paths))
    named = zip(homes, names(homes), strict=True)
    return alike(
        [record(home, name) for home, name in track(named, len(homes), "runs", least=MANY)]
    )


def alike(records: list[Record]) -> list[Record]:
    """The records, with scores of networks that no run made under the names that the runs' scores on that data have."""
    filed = {
        (name, score.get("data"))
        for one in records
        if one.recipe
        for name, score in one.scores.items()
    }

    def named(name: str, data: Any) -> str:
        there = (name, data) not in filed and (f"{name}@{data}", data) in filed
        return f"{name}@{data}" if there else name

    return [
        one
        if one.recipe
        else replace(one, scores={named(key, x.get("data")): x for key, x in one.scores.items()})
        for one in records
    ]


def record(path: Path, name: str) -> Record:
    """One folder; a file that is damaged is refused, one that is absent is not."""
    folder = RunFolder(path)
    recipe, scores, analysis, env = (
        _mapping(path / file, folder.read_json(file))
        for file in ("recipe.json", "scores.json", "analysis.json", "env.json")
    )
    sources = recipe.pop("sources", {})
    return Record(
        path,
        name,
        leaves(recipe),
        {str(key): str(value) for key, value in sources.items()}
        if isinstance(sources, dict)
        else {},
        env,
        folder.metrics(),
        {
            key: value
            for key, value in scores.items()
            if isinstance(value, dict) and number(value.get("value"))
        },
        analysis,
        (path / "backbone.safetensors").exists(),
    )


def names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as it takes to tell them apart."""
    deepest = max((len(path.parts) for path in paths), default=1)
    for depth in range(1, deepest + 1):
        tails = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(tails)) == len(paths):
            return tails
    return [str(path) for path in paths]


def leaves(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by dotted key, of nested sections."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        found |= leaves(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found


def _mapping(file: Path, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(
            f"{file} holds no object of keys and values but {json.dumps(content)[:40]}"
        )
    return content
