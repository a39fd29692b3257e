"""A process that decodes JPEG files on a GPU beside the training step.

nvJPEG starts several small kernels per image. In one CUDA context each of them waits for kernels of
the step. On an H200, beside the steps of a classifier, 1,118 images/s were decoded in the process
of the steps, and 20,222 images/s in another process, which has a CUDA context of its own
(benchmarks/RESULTS.md).

The processes share the files in host memory by a file descriptor, and the crops in GPU memory by
CUDA IPC. They exchange messages over a socket. When the main process ends, so does the other one.
"""

import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import warnings
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.multiprocessing  # lets connections send tensors

from antipode.data.cutting import Cutter
from antipode.data.encoded import Rows, Slots
from antipode.data.workers import pinned

START = "import sys; from antipode.data import decoding_process as it; it.serve(*sys.argv[1:])"
LANES = 2  # batches that are decoded at the same time
PATIENCE = 120  # seconds in which the process must have started
PRIORITY = -1  # of its stream; it counts only if processes share a context (MPS)


class Apart:
    """A process with cutters.

    Its `lanes` have the methods of a `Cutter`, and may work at the same time in different threads.
    """

    def __init__(self, cutter: Cutter) -> None:
        memory = cutter.slots.descriptor
        if memory is None:
            raise OSError("this system has no memory that is shared by a file descriptor")
        pairs = [socket.socketpair() for _ in range(LANES)]
        ends = [memory, *(theirs.fileno() for _, theirs in pairs)]
        command = [sys.executable, "-P", "-c", START, *map(str, ends)]
        paths = os.pathsep.join(path for path in sys.path if path)
        try:
            self.process = subprocess.Popen(
                command, pass_fds=ends, env=os.environ | {"PYTHONPATH": paths}
            )
        finally:
            for _, theirs in pairs:
                theirs.close()
        self.lanes = [Lane(self.process, Connection(ours.detach())) for ours, _ in pairs]
        try:
            for lane in self.lanes:
                lane.begin(cutter)
            for lane in self.lanes:
                lane.wait_for_start()
        except BaseException:
            self.process.kill()
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        for lane in self.lanes:
            lane.link.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()
        cuda: Any = torch.cuda
        if cuda.is_initialized():
            cuda.ipc_collect()  # memory that was shared can be used again


class Lane:
    """A cutter in another process, which answers over a socket."""

    def __init__(self, process: "subprocess.Popen[bytes]", link: Connection) -> None:
        self.process = process
        self.link = link

    def begin(self, cutter: Cutter) -> None:
        """Send what the process needs."""
        size = (cutter.slots.count, cutter.slots.size)
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended; see `_answer`
            self.link.send_bytes(multiprocessing.current_process().authkey)
            self.link.send(cutter.device)
            self.link.send((*size, cutter.decode, cutter.cubic, cutter.sets))

    def wait_for_start(self) -> None:
        """Wait until the process can cut."""
        if not self.link.poll(PATIENCE):
            raise TimeoutError(f"it did not start within {PATIENCE} seconds")
        self._answer()

    def fill(self, turn: int, pending: list[Rows]) -> list[int]:
        """Write the crops of a step to a set, see `Cutter.fill`."""
        with suppress(OSError):  # it has ended; the answer tells more
            self.link.send((turn, pending))
        return list(self._answer())

    def _answer(self) -> Any:
        """Return what the process answers, or raise its error."""
        try:
            answer = self.link.recv()
        except (EOFError, OSError):
            code = self.process.wait(10)
            text = f"the process that decodes images has ended with exit code {code}"
            raise RuntimeError(text) from None
        if isinstance(answer, BaseException):
            raise answer
        return answer


def apart(cutter: Cutter) -> Apart | None:
    """Return a process with such cutters, or None if the decoder or the system does not suit."""
    if not getattr(cutter.decode, "apart", False):
        return None
    try:
        return Apart(cutter)
    except Exception as error:
        warnings.warn(
            f"images are decoded in the process of the steps, which slows both, because a process "
            f"of its own failed: {error}",
            stacklevel=2,
        )
        return None


def serve(memory: str, *links: str) -> None:
    """Answer the requests that come over sockets, until the main process closes them.

    Args:
        memory: the file descriptor of the files.
        links: those of the sockets.
    """
    # The main process decides when to stop: it may have to write a checkpoint first.
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    lanes = [
        threading.Thread(target=_serve, args=(Connection(int(link)), os.dup(int(memory))))
        for link in links
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()


def _serve(requests: Connection, memory: int) -> None:
    """Answer the requests that come over one socket."""
    with suppress(EOFError, ConnectionError):
        multiprocessing.current_process().authkey = requests.recv_bytes()
        try:
            device = requests.recv()
            if device.type == "cuda":
                torch.cuda.set_device(device)
            count, size, decode, cubic, sets = requests.recv()
            cutter = Cutter(decode, Slots(count, size, memory), cubic, sets)
            requests.send(None)
        except Exception as error:
            _send_error(requests, error)
            return
        with pinned(cutter.slots.flat, device), _on_a_stream(device):
            while True:
                turn, pending = requests.recv()
                try:
                    answer = cutter.fill(turn, pending)
                except Exception as error:
                    _send_error(requests, error)
                else:
                    requests.send(answer)


def _on_a_stream(device: torch.device) -> Any:
    """Return a context in which work goes to a stream of its own."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device, priority=PRIORITY))  # type: ignore[no-untyped-call]


def _send_error(link: Connection, error: Exception) -> None:
    """Send an error, or its text if it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    link.send(error)
