"""Perform tasks where the user asked for: on this machine, or on a SLURM or Ray cluster."""

from collections.abc import Sequence
from pathlib import Path

from antipode.launch import local
from antipode.launch.place import Place, Resources
from antipode.launch.ray_cluster import perform_on_ray
from antipode.launch.slurm import perform_on_slurm
from antipode.launch.task import Task
from antipode.wording import option


def perform(
    tasks: Sequence[Task],
    *,
    place: Place,
    resources: Resources,
    at_once: int | str = 1,
    device: str = "auto",
    quiet: bool = False,
    guess: str = "",
) -> dict[Path, str]:
    """Perform tasks and return the folders of those that failed, with a sentence each.

    Args:
        tasks: the tasks, in the order in which they start.
        place: where they run.
        resources: what each task gets on a cluster. Raises ValueError on this machine.
        at_once: how many tasks share the device of this machine, or "auto". Must be 1 on a cluster,
            whose scheduler decides.
        device: the device that they use: auto, cpu, cuda or mps.
        quiet: whether to print nothing.
        guess: what to print as the time left before the first task has ended.
    """
    check(place, resources, at_once)
    if place.kind == "slurm":
        return perform_on_slurm(tasks, resources=resources, device=device, quiet=quiet)
    if place.kind == "ray":
        return perform_on_ray(
            tasks, address=place.address, resources=resources, device=device, quiet=quiet
        )
    return local.perform(tasks, at_once=at_once, device=device, quiet=quiet, guess=guess)


def check(place: Place, resources: Resources, at_once: int | str = 1) -> None:
    """Raise ValueError if the options do not fit together. Call it before anything is planned."""
    check_at_once(place, at_once)
    if place.kind == "local" and resources != Resources():
        raise ValueError(
            f"{option('resources')} needs a cluster: add {option('on', 'slurm')} or "
            f"{option('on', 'ray')}"
        )


def check_at_once(place: Place, at_once: int | str) -> None:
    """Raise ValueError if runs cannot train at the same time in this number, or at this place."""
    number = local.check_at_once(at_once)
    if place.kind != "local" and number != 1:
        raise ValueError(
            f"{option('at_once')} shares the device of this machine; on {place} the scheduler "
            "decides how many runs train at the same time"
        )
