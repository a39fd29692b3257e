"""Score the backbone of a run by protocols, and add the scores to its folder."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from antipode import dist
from antipode.data.sources.catalog import Given, python_name
from antipode.data.sources.folder import held_out
from antipode.data.sources.label_folders import unlike_classes
from antipode.data.sources.located import below, is_relative, path_of, same_place
from antipode.data.sources.splits import Splits
from antipode.devices import pick_device
from antipode.evaluation.beside import Beside
from antipode.evaluation.protocol import known, protocols, usual
from antipode.evaluation.score import Score
from antipode.evaluation.task import Protocol, Task
from antipode.evaluation.untrained import untrained_backbone
from antipode.names import printable
from antipode.runs.folder import check_results
from antipode.runs.own_images import OtherImages
from antipode.runs.run import Run, Runs, opened
from antipode.types import check_seed
from antipode.wording import option


def evaluate(
    run: Runs,
    names: Sequence[str] | None = None,
    *,
    data: Given | None = None,
    out: Path | None = None,
    seed: int | None = None,
    device: str = "auto",
    module: Any = None,
    compare: bool = True,
) -> dict[str, Score]:
    """Score a run by protocols. The arguments are those of `antipode.evaluate`.

    Without names, the protocols are those of `usual`. `compare` says whether the untrained network
    is scored, too, by the protocols that are cheap enough.
    """
    chosen = {name: known(name) for name in names or ()}
    if names is not None and not chosen:
        raise ValueError(f"no protocol was given: choose from {', '.join(protocols())}")
    seed = None if seed is None else check_seed(seed)
    subject = opened(run, data=_data_name(data, chosen), out=out, seed=seed or 0, module=module)
    if subject.network is None and out is not None:
        raise ValueError(
            f"the scores of {subject.path} belong to that run: {option('out')} is for networks "
            "that no run trained"
        )
    if subject.network is not None:
        _check_folder(subject)
    else:
        subject.check_finished()
    where = pick_device(device)
    dist.setup(where.type)
    scoring = _Scoring(subject, data, where, subject.seed if seed is None else seed, compare)
    with dist.together("the scores that were computed before are stored"):
        scores = scoring.run(chosen or scoring.usual())
    named = out is not None or isinstance(run, Run)
    if subject.network is not None and not named and dist.first():
        file = subject.path / "scores.json"
        print(f"the scores are in {file}; {option('out')} names another folder", file=sys.stderr)
    return scores


def task_for(run: Run, data: "Given | Splits | None", device: torch.device, seed: int) -> Task:
    """Return the task of protocols: the backbone of a run on a data set, by default its own.

    If your own labelled data set has no test images, a part of its images is held out.
    """
    task = plain_task(run, data, device, seed)
    given = run.data if data is None else data
    if given is None or isinstance(given, str | Splits) or task.splits.test is not None:
        return task
    return replace(task, splits=_with_test(task.splits))


def plain_task(run: Run, data: "Given | Splits | None", device: torch.device, seed: int) -> Task:
    """Return the task of protocols without labels, which need no test images."""
    splits = run.splits(data)
    return Task(
        backbone=run.frozen_backbone.to(device),
        splits=splits,
        size=run.size,
        eval_view=run.eval_view(splits).to(device),
        device=device,
        seed=seed,
        make_head=run.head,
        root=run.root,
        cache=run.path / "features",
        make_untrained=partial(untrained_backbone, run),
    )


def _warn_of_odd_classes(place: Any, splits: Splits) -> None:
    """Warn if the class folders of a folder of images have names like dates or cameras."""
    if isinstance(place, str) and place.startswith("folder:") and splits.classes:
        doubt = unlike_classes(splits.classes)
        if doubt:
            text = f"{place}: {doubt}; here they are taken as classes"
            warnings.warn(printable(text), stacklevel=5)


def _with_test(splits: Splits) -> Splits:
    """Hold out a tenth of each class of your own labelled data set as test images."""
    train, test = held_out(splits.train)
    if test is not None:
        warnings.warn(
            f"{splits.name} has no test images and is scored on {len(test)} of its labelled "
            "images, which pretraining may have used without their labels; pass "
            "data=(train, test) to choose other test images",
            stacklevel=5,
        )
    return replace(splits, train=train, test=test)


def _data_name(data: Given | None, chosen: Mapping[str, Protocol]) -> str | None:
    """Return the name of the data set for a network that no run trained."""
    if isinstance(data, str):
        return data
    if data is not None:
        return python_name(data)
    return next((protocol.data for protocol in chosen.values() if protocol.data), None)


def _check_folder(run: Run) -> None:
    """Raise ValueError if the folder holds anything but the scores of this network."""
    assert run.network is not None
    check_results(run.path, "recipe.json", "network.json")
    stored = run.folder.read_object("network.json")
    if run.folder.holds_run():
        raise ValueError(
            f"{run.path} holds a run, and {run.name} is another network: choose another "
            f"{option('out')}"
        )
    # Only untrained weights depend on a seed.
    other_seed = run.network.kind == "random" and stored.get("seed", run.seed) != run.seed
    if stored.get("network", run.name) != run.name or other_seed:
        seed = f" with seed {stored['seed']}" if other_seed else ""
        other = f"{stored.get('network', 'another network')}{seed}"
        raise ValueError(
            f"{run.path} holds the scores of {other}: choose another {option('out')} for {run.name}"
        )


class _Scoring:
    """The scoring of one run by several protocols.

    Each score is stored as soon as it is known, because the next protocol may take hours.
    """

    def __init__(
        self, run: Run, data: Given | None, device: torch.device, seed: int, compare: bool
    ) -> None:
        self.subject = run
        self.beside = Beside(compare)
        self.own = run.data_name
        # The run's own data set may be passed again, or named. It is then still the run's own.
        self.named_again = isinstance(data, str) and same_place(data, run.own_images.place)
        passed_again = self.named_again or _same_objects(data, run.data)
        # A relative name means the current folder, whatever the name in the recipe means.
        if isinstance(data, str) and data == self.own:
            data = below(data, Path.cwd())
        self.given = data
        self.data = None if passed_again else self.given
        self.own_data_passed = data is not None and self.data is None
        self.changed = False  # the run's own folder was named, and it holds other images now
        self.device = device
        self.seed = seed
        self.tasks: dict[str, Task] = {}
        # the tasks on your own data sets without test images, from which some are held out
        self.labelled: dict[str, Task] = {}
        self.scores: dict[str, Score] = {}

    def run(self, chosen: Mapping[str, Protocol]) -> dict[str, Score]:
        """Return the scores by protocol.

        If some protocols fail, the scores of the others are stored first. Then an error is raised.
        If a protocol fails on some ranks only, such as for a file that one rank reads, these stop.
        """
        self.subject.folder.read_object("scores.json")  # raises early if it is damaged
        failures: dict[str, Exception] = {}
        for name, protocol in chosen.items():
            try:
                self._score(name, protocol)
            except (ValueError, FileNotFoundError) as error:
                failures[name] = error
                if not dist.failed_together():
                    break
        _warn_unreadable([*self.tasks.values(), *self.labelled.values()])
        if failures:
            raise _failure(failures, self.scores, self.subject.path / "scores.json")
        return self.scores

    def usual(self) -> dict[str, Protocol]:
        """Return the protocols that fit the data set."""
        task = self._task(self.own if self.data is None else self.data, labels=True)
        return {name: known(name) for name in usual(task)}

    def _score(self, name: str, protocol: Protocol) -> None:
        place: Any = self.data
        if place is None:
            place = self.own if self.own_data_passed else protocol.data or self.own
        task = self._task(place, protocol.labels)
        place = self.given if self.changed and place == self.own else place
        result = protocol.run(task)
        # The images of a packed data set may be smaller, so it is not the original data set.
        packed = place != self.own and isinstance(place, str) and place.startswith("packed:")
        on = str(place) if packed else task.splits.name
        score = Score(
            result.value,
            result.unit,
            name,
            {"size": task.size, **result.settings},
            on,
            split=result.split,
            n=result.n,
            seed=self.seed,
            epoch=result.epoch,
            more=result.more
            | self.beside.more(protocol, task, result)
            | _unreadable_counts(task.splits),
            low=result.low,
            high=result.high,
            chance=result.chance,
        )
        if dist.rank() == 0:
            self._store(name if place == self.own else f"{name}@{on}", score)
        self.scores[name] = score

    def _task(self, place: Any, labels: bool) -> Task:
        """Return the task on a data set, for protocols with or without labels."""
        data = self.subject.data if place == self.own else place
        if str(place) not in self.tasks:
            self.tasks[str(place)] = self._opened(data)
            if labels and place != self.own:
                _warn_of_odd_classes(place, self.tasks[str(place)].splits)
        task = self.tasks[str(place)]
        by_name = data is None or isinstance(data, str)
        if not labels or by_name or task.splits.test is not None:
            return task
        if str(place) not in self.labelled:
            self.labelled[str(place)] = replace(task, splits=_with_test(task.splits))
        return self.labelled[str(place)]

    def _opened(self, data: Given | None) -> Task:
        """Return the task on a data set, or on the run's own images for None.

        If the user has named the run's own folder, and it holds other images now, they are scored
        as other data.
        """
        try:
            return plain_task(self.subject, data, self.device, self.seed)
        except OtherImages as error:
            if data is not None or not self.named_again:
                raise
            warnings.warn(
                f"{str(error).partition('; ')[0]}; the scores are stored as PROTOCOL@{self.given}",
                stacklevel=4,
            )
            self.changed = True
            return plain_task(self.subject, self.given, self.device, self.seed)

    def _store(self, name: str, score: Score) -> None:
        """Add a score to scores.json.

        The name of a network that no run trained is added to network.json.
        """
        run = self.subject
        if run.was_replaced():
            raise ValueError(
                f"{run.path} now holds another run: the score {name} of the earlier one is not "
                "stored"
            )
        run.folder.file("scores.json", {name: score.json()})
        if run.network is not None and not run.folder.read_object("network.json"):
            about = {"network": run.name, "data": run.network.data, "seed": run.seed}
            if is_relative(path_of(run.network.data)):
                about["directory"] = str(Path.cwd())
            run.folder.file("network.json", about)


def _same_objects(data: Any, own: Any) -> bool:
    """Return True if two data arguments are the same objects, even if in different tuples."""
    if own is None or data is None or isinstance(data, str):
        return False
    if isinstance(data, tuple) and isinstance(own, tuple):
        return len(data) == len(own) and all(a is b for a, b in zip(data, own, strict=True))
    return data is own


def _unreadable(splits: Splits, part: str) -> dict[str, str]:
    """Return the images of a split that could not be read: their names with the reasons."""
    source = splits.train if part == "train" else splits.test
    failed = getattr(source, "failed", {})
    # The splits of a folder share the record of failures.
    names = set(getattr(source, "names", ())) if failed else set()
    return {name: reason for name, reason in failed.items() if name in names}


def _unreadable_counts(splits: Splits) -> dict[str, int]:
    """Return the number of train and test images that could not be read, if there are any."""
    counts = {part: len(_unreadable(splits, part)) for part in ("train", "test")}
    return {f"unreadable {part} images": count for part, count in counts.items() if count}


def _warn_unreadable(tasks: list[Task]) -> None:
    """Warn about test images that could not be read, so that another image replaced them."""
    for task in tasks:
        unreadable = _unreadable(task.splits, "test")
        if unreadable and task.splits.test is not None:
            warnings.warn(
                f"{len(unreadable)} of the {len(task.splits.test)} test images of "
                f"{task.splits.name} cannot be read: "
                "the next readable image is scored in their place",
                stacklevel=4,
            )


def _failure(failures: dict[str, Exception], scores: dict[str, Score], file: Path) -> Exception:
    """Return the error for protocols that failed. Its `scores` are those of the other protocols."""
    first = next(iter(failures.values()))
    if len(failures) == 1 and not scores:
        return first
    if len({str(error) for error in failures.values()}) == 1:
        why = f"{', '.join(failures)}: {first}"
    else:
        why = "; ".join(f"{name}: {error}" for name, error in failures.items())
    if scores:
        verb = "is" if len(scores) == 1 else "are"
        why += f"; {' and '.join(scores)} succeeded and {verb} in {file}"
    kind = FileNotFoundError if isinstance(first, FileNotFoundError) else ValueError
    error = kind(why)
    error.__cause__ = first
    error.__dict__["scores"] = scores
    return error
