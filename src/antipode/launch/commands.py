"""Plain commands for schedulers that antipode does not know, as `--plan` prints them."""

import os
import shlex
from collections.abc import Mapping
from typing import Any

from antipode import dist
from antipode.launch.place import Asked
from antipode.launch.place import resources as wanted


def plain_command(command: str, recipe: str | None, arguments: Mapping[str, Any]) -> str:
    """Return a command line with the arguments that have a value, as a shell takes it."""
    words = ["antipode", command, *([recipe] if recipe else [])]
    for name, value in arguments.items():
        if name == "overrides":
            words += [word for text in value for word in ("--set", text)]
        elif value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def ranked(line: str, resources: Asked = None) -> str:
    """Return a line in which the command runs with as many processes as the resources ask for.

    If they ask for no number of processes or GPUs, the line has as many as torchrun has started
    here. With several nodes, HOST stands for the name of the first one.
    """
    asked = wanted(resources)
    ranks, nodes = asked.ranks, asked.nodes
    if ranks == 1 and asked.gpus is None and asked.processes is None:
        ranks = dist.world_size()
        nodes = ranks // int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    if ranks == 1:
        return line
    words = f"torchrun --nnodes {nodes} --nproc-per-node {ranks // nodes}"
    if nodes > 1:
        words += " --rdzv-backend c10d --rdzv-endpoint HOST:29500"
    return line.replace("antipode pretrain", f"{words} -m antipode pretrain", 1)
