"""Kill training runs with SIGKILL at random moments, and compare their end with undisturbed runs.

    OMP_NUM_THREADS=1 python -m tests.kills [RUNS [KILLS]]

Each of RUNS runs is killed KILLS times in all and started again each time. When it has ended, its
weights, optimiser, log and all other files must have the same bits as those of a run that was never
killed.
"""

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests import crashes

METHODS = ("dcl", "mocov2", "byol", "adco", "npid")
SETTINGS = "--backbone resnet10-slim --epochs 12 --batch 8 --device cpu --set views.size=8"
SETTINGS += " --set train.checkpoint_every=1 --set monitor.log_every=1 --set data.workers=0"
SMALL = {"mocov2": " --set method.queue=32", "adco": " --set method.bank=16"}


def started(words, root):
    """Start a command in a child, and return the id of the child."""
    child = os.fork()
    if not child:
        try:
            os._exit(crashes.command_status(words, root))
        finally:
            os._exit(1)
    return child


def killed_or_ended(child, seconds):
    """Kill a child after some seconds; return its exit status, negative if it was killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_again_and_again(words, place, kills, chance):
    """Kill a run `kills` times at random moments; return how often it came to its end."""
    template = place / "template"
    crashes.prepared(template, [])
    whole = place / "whole"
    shutil.copytree(template, whole)
    begun = time.monotonic()
    assert crashes.run(words, whole) == 0, (place / "output").read_text()
    duration = time.monotonic() - begun
    expected = crashes.result(whole / "run")
    root = place / "root"
    ends = 0
    while kills >= 0:
        if not root.exists():
            shutil.copytree(template, root)
        # the last attempt is left alone
        limit = chance.uniform(0, 0.7 * duration) if kills else 1e9
        status = killed_or_ended(started(words, root), limit)
        assert status in (0, -signal.SIGKILL), (status, (place / "output").read_text())
        if status == 0:
            differing = crashes.differing(crashes.result(root / "run"), expected)
            assert not differing, (words, differing)
            assert crashes.names(root) == crashes.names(whole), words
            shutil.rmtree(root)
            ends += 1
        if status or not kills:
            kills -= 1
    return ends


def main():
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    runs, kills = (int(word) for word in (*sys.argv[1:], "10", "20")[:2])
    chance = random.Random(0)
    for number in range(runs):
        method = METHODS[number % len(METHODS)]
        words = f"pretrain --data folder:images --out run --method {method} --seed {number} "
        words += SETTINGS + SMALL.get(method, "")
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            ends = kill_again_and_again(words, Path(folder), kills, chance)
        print(f"{method}, seed {number}: {kills} kills, {ends} ends, same bits", flush=True)


if __name__ == "__main__":
    main()
