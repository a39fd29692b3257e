"""Connect to a Ray cluster, and decide what each run gets of it."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from antipode.launch.place import Resources
from antipode.threads import PASSIVE
from antipode.wording import option

SLURM_ONLY = ("hours", "partition", "account", "qos", "constraint")
GB = 1 << 30


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that this process is connected to.

    Args:
        ray: the module.
        own: True if it was started for this call, so that no node can join it.
    """

    ray: Any
    own: bool

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node that is alive."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]


@dataclass(frozen=True)
class Needs:
    """What each task gets: CPU cores, which are also its threads, GPUs and memory in bytes."""

    cpus: int
    gpus: int = 0
    memory: int = 0

    def options(self) -> dict[str, Any]:
        """Return the options of a Ray task. Ray itself never repeats it: see ray_cluster.py."""
        variables = {**PASSIVE, "OMP_NUM_THREADS": str(self.cpus)}
        if "ANTIPODE_DATA" in os.environ:
            variables["ANTIPODE_DATA"] = os.environ["ANTIPODE_DATA"]
        return {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "memory": self.memory or None,
            "max_retries": 0,
            # a process that stays would keep its memory on the GPU
            "max_calls": 1 if self.gpus else 0,
            "runtime_env": {"env_vars": variables},
        }

    def fit(self, node: dict[str, float]) -> int:
        """Return how many tasks a node takes at once."""
        asked = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return int(min(node.get(key, 0) // amount for key, amount in asked.items() if amount))

    def __str__(self) -> str:
        parts = [f"cpus={self.cpus}"]
        parts += [f"gpus={self.gpus}"] if self.gpus else []
        parts += [f"memory={self.memory / GB:g}"] if self.memory else []
        return ",".join(parts)


def check(resources: Resources) -> None:
    """Raise ValueError for resources that a task of Ray cannot have."""
    if resources.ranks > 1:
        raise ValueError(
            f"a run on Ray has one process and at most one GPU, but {option('resources')} asks for "
            f"{resources.ranks} processes: use {option('on', 'slurm')}, or torchrun"
        )
    for name in SLURM_ONLY:
        if getattr(resources, name) is not None:
            raise ValueError(
                f"the resource {name} is for {option('on', 'slurm')}; a run on Ray takes gpus, "
                "cpus and memory"
            )


def needs(cluster: Cluster, resources: Resources) -> Needs:
    """Return what each task gets.

    A GPU is the default if a node has one. The default number of cores is that of the threads of
    this process, so that sums have the bits of a local run, or on a GPU its share of its node, and
    no more than the largest node has. Raises ValueError if no node has so much and none can join.
    """
    nodes = cluster.nodes()
    most = max(nodes, key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), default={})
    gpus = min(1, int(most.get("GPU", 0))) if resources.gpus is None else resources.gpus
    largest = int(max((node.get("CPU", 0) for node in nodes), default=0)) or 1
    if resources.cpus is not None:
        cpus = resources.cpus
    elif gpus:
        cpus = max(1, int(most.get("CPU", 1) // max(1, most.get("GPU", 0))))
    else:
        cpus = min(largest, torch.get_num_threads())
    found = Needs(cpus, gpus, int((resources.memory or 0) * GB))
    if not any(found.fit(node) for node in nodes):
        problem = f"a run needs {found}, and none of the {len(nodes)} nodes of Ray has so much"
        if cluster.own:
            raise ValueError(f"{problem}: use smaller {option('resources')}")
        print(f"{problem}; the runs wait for one that has", file=sys.stderr, flush=True)
    return found


@contextmanager
def connected(address: str, quiet: bool) -> Iterator[Cluster]:
    """Connect to a cluster, or start one on this machine if there is no address.

    The variable RAY_ADDRESS may name a cluster, too. A connection that the program has already is
    used as it is, and is kept at the end. A cluster that was started here is stopped.
    """
    ray = _module()
    if ray.is_initialized():
        yield Cluster(ray, False)
        return
    own = not address and not os.environ.get("RAY_ADDRESS")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        try:
            _connect(ray, address, own, quiet)
        finally:
            _take_back(handler)
        yield Cluster(ray, own)
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str, own: bool, quiet: bool) -> None:
    """Connect to a cluster or start one. Raises ValueError if that fails."""
    arguments: dict[str, Any] = {"log_to_driver": not quiet, "logging_level": logging.ERROR}
    if own:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        arguments |= {"address": "local", "include_dashboard": False}
    elif address:
        arguments["address"] = address
    try:
        ray.init(**arguments)
    except (OSError, RuntimeError, ValueError, TimeoutError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        named = address or os.environ.get("RAY_ADDRESS", "")
        what = "start Ray on this machine" if own else f"connect to the Ray cluster {named}"
        raise ValueError(f"cannot {what} ({text[:300]})") from None


def _take_back(handler: Any) -> None:
    """Install the handler of SIGTERM again, which Ray replaces when it connects."""
    try:
        signal.signal(signal.SIGTERM, handler)
    except ValueError:  # only the main thread can handle signals, and Ray leaves them alone then
        return


def _module() -> Any:
    """Return the module ray, which is optional."""
    try:
        return import_module("ray")
    except ImportError:
        raise ValueError(f"{option('on', 'ray')} needs Ray: pip install 'antipode[ray]'") from None
