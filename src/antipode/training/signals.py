"""Signals that stop a run: it finishes its step, writes a checkpoint and ends."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from antipode import dist
from antipode.training.progress import say

STOPPING = (signal.SIGTERM, signal.SIGINT)
# seconds; a run that ends sooner after a signal does not announce that it will
SOON = 1.0


class StepClock:
    """The number and the duration of the current step."""

    def __init__(self, start: int, total: int) -> None:
        self.step = start
        self.total = total
        self.seconds: float | None = None  # of the last step
        self.begun = time.monotonic()

    def tick(self) -> None:
        """Note that a step has ended."""
        now = time.monotonic()
        self.seconds = now - self.begun
        self.begun = now
        self.step += 1

    def announcement(self, number: int) -> str:
        """Return a sentence about a run that is about to stop because of a signal."""
        took = "" if self.seconds is None else f" (the last one took {self.seconds:.0f} s)"
        return (
            f"{signal.Signals(number).name} received: the run ends after step {self.step + 1} of "
            f"{self.total}, which is still being computed{took}, and writes a checkpoint then"
        )


@contextmanager
def interrupts(announcement: Callable[[int], str]) -> Iterator[list[int]]:
    """Collect the numbers of SIGTERM and SIGINT signals in a list, in place of ending at once.

    A second Ctrl-C raises KeyboardInterrupt. If the step takes longer than a second, the
    announcement is printed.
    """
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    try:
        before = {number: signal.signal(number, receive) for number in STOPPING}
    except ValueError:  # only the main thread can handle signals
        yield received
        return
    try:
        with announced(announcement):
            yield received
    except ConnectionError:
        # torchrun is about to end this rank, too: with the old handlers its SIGTERM could cut off
        # the error message
        raise
    except BaseException:
        _restore(before)
        raise
    _restore(before)


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    """Install signal handlers again."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def announced(announcement: Callable[[int], str]) -> Iterator[None]:
    """Print a sentence soon after a signal has arrived, also during a long operation of torch.

    Python calls a signal handler only between two operations, and the backward pass is a single
    operation, which may take a minute on a CPU. The number of the signal is written to a pipe at
    once, and a thread reads it there.
    """
    if dist.rank() > 0 or os.name != "posix":
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    ended = threading.Event()
    watcher = threading.Thread(target=_announce, args=(reading, ended, announcement), daemon=True)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        # worker processes may hold the pipe open, so closing it would not end the thread
        os.write(writing, b"\0")
        watcher.join()
        os.close(writing)
        os.close(reading)


def _announce(reading: int, ended: threading.Event, announcement: Callable[[int], str]) -> None:
    """Wait for a stopping signal in a pipe, and announce the end of the run once."""
    while number := os.read(reading, 1)[0]:
        if number in STOPPING:
            if not ended.wait(SOON):
                say(announcement(number))
            return
