"""Where tasks run, and what each of them needs: the values of `--on` and `--resources`."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from antipode.names import brief, closest, unknown
from antipode.wording import option

Kind = Literal["local", "slurm", "ray"]
KINDS = ("local", "slurm", "ray", "ray://HOST:PORT")
WHOLE = ("gpus", "nodes", "processes", "cpus")  # keys of whole numbers
UNITS = {"": 1.0, "G": 1.0, "GB": 1.0, "M": 1 / 1024, "MB": 1 / 1024, "T": 1024.0, "TB": 1024.0}


@dataclass(frozen=True)
class Place:
    """Where tasks run.

    Args:
        kind: this machine, a SLURM cluster or a Ray cluster.
        address: of a Ray cluster that is already running, such as ray://HOST:PORT; empty for one
            that is started on this machine, or that the variable RAY_ADDRESS names.
    """

    kind: Kind = "local"
    address: str = ""

    def __str__(self) -> str:
        return self.address or self.kind


@dataclass(frozen=True)
class Resources:
    """What each run gets. None leaves the choice to the scheduler.

    Args:
        gpus: GPUs per node. A run has one process per GPU. By default 1 if the cluster has GPUs.
        nodes: machines per run.
        processes: processes per node; by default one per GPU, and 1 without GPUs.
        cpus: CPU cores per process.
        memory: memory per node in GB.
        hours: time limit. A run that reaches it continues in a new time slot.
        partition: partition of a SLURM cluster.
        account: account that is charged on a SLURM cluster.
        qos: quality of service on a SLURM cluster.
        constraint: features that a node of a SLURM cluster must have.
    """

    gpus: int | None = None
    nodes: int = 1
    processes: int | None = None
    cpus: int | None = None
    memory: float | None = None
    hours: float | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None

    @property
    def ranks(self) -> int:
        """Processes of a run, over all nodes."""
        return self.nodes * (self.processes or self.gpus or 1)


KEYS = tuple(field.name for field in fields(Resources))
Asked = str | Mapping[str, Any] | Resources | None


def place(on: str | Place | None) -> Place:
    """Return the place that a text names. Raises ValueError for an unknown one."""
    if isinstance(on, Place):
        return on
    if on is None or on == "local":
        return Place()
    if on == "slurm":
        return Place("slurm")
    if on == "ray":
        return Place("ray")
    if not isinstance(on, str):
        raise unknown("place", on, KINDS)
    if re.fullmatch(r"ray://[^\s/:]+:\d+", on):
        return Place("ray", on)
    if on.startswith("ray://"):
        raise ValueError(
            f"{option('on')} {brief(on)} is no address of a Ray cluster: it must be "
            "ray://HOST:PORT, such as ray://head:10001"
        )
    raise unknown("place", on, KINDS)


def resources(asked: Asked) -> Resources:
    """Return the resources that a text `key=value,...` or a mapping asks for.

    Raises ValueError for an unknown key or a value out of range.
    """
    if isinstance(asked, Resources):
        return asked
    if not isinstance(asked, str | Mapping | None):
        raise ValueError(
            f"{option('resources')} must be key=value,... or a mapping, not {brief(asked)}"
        )
    pairs = _pairs(asked) if isinstance(asked, str) else dict(asked or {})
    values = {}
    for key, value in pairs.items():
        if key not in KEYS:
            hint = f", did you mean {match!r}?" if (match := closest(key, KEYS)) else ""
            raise ValueError(f"there is no resource {brief(key)}{hint} (choose from {_listed()})")
        values[key] = _value(key, value)
    found = Resources(**values)
    if found.processes and found.gpus and found.processes != found.gpus:
        raise ValueError(
            f"a run has one process per GPU, but processes is {found.processes} and gpus is "
            f"{found.gpus}"
        )
    return found


def _listed() -> str:
    return ", ".join(KEYS)


def _pairs(text: str) -> dict[str, str]:
    """Return the keys and values of a text. A part without = continues the value before it."""
    pairs: dict[str, str] = {}
    key = ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if equals:
            key = name.strip()
            if key in pairs:
                raise ValueError(f"the resource {brief(key)} is given twice")
            pairs[key] = value.strip()
        elif key in KEYS and key not in (*WHOLE, "memory", "hours"):
            pairs[key] += f",{part}"
        else:
            raise ValueError(f"resources are written as key=value,..., but {brief(part)} has no =")
    return pairs


def _value(key: str, value: Any) -> Any:
    """Return the value of a resource, converted and checked."""
    if value is None and key != "nodes":
        return None
    if key in WHOLE:
        return _whole(key, value)
    if key in ("memory", "hours"):
        return _positive(key, value)
    if not isinstance(value, str) or not value:
        raise ValueError(f"the resource {key} needs a name, not {brief(value)}")
    return value


def _whole(key: str, value: Any) -> int:
    least = 0 if key == "gpus" else 1
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < least:
        raise ValueError(
            f"the resource {key} must be a whole number of at least {least}, not {brief(value)}"
        )
    return number


def _positive(key: str, value: Any) -> float:
    """Return the hours, or the memory in GB, from a number or a text such as 64GB."""
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", str(value))
    unit = UNITS.get(match[2].upper()) if match and (key == "memory" or not match[2]) else None
    try:
        number = float(match[1]) * unit if match and unit else math.nan
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        example = "64GB" if key == "memory" else "12"
        raise ValueError(
            f"the resource {key} must be a positive number such as {example}, not {brief(value)}"
        )
    return number
