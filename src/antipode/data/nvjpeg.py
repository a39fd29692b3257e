"""NVIDIA's nvJPEG, called directly: decode JPEG files on the current CUDA stream.

torchvision and torchcodec call nvJPEG, too, on a stream with the priority of the training step.
Here its kernels run on the stream of the caller, which may have a higher priority, and all images
of a batch are written to one block of memory.

The library comes with torchvision, with NVIDIA's packages, or with the CUDA toolkit.
"""

import ctypes
import ctypes.util
import threading
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# nvjpegBackend_t, the fastest first: the engine for JPEG; kernels, also for Huffman codes
BACKENDS = {"hardware": 3, "gpu-hybrid": 2}
PLANES = 3  # nvjpegOutputFormat_t: RGB, one plane after the other
# Flags of nvjpegCreateEx.
# 1, no pipeline: the pipeline waits on the host for each image before the next one goes to the
# engine, and beside a training step each wait takes about half a millisecond.
# 32, interpolation: subsampled colour is interpolated as by libjpeg, and not repeated.
FLAGS = 1 | 32
ALIGNED = 512  # bytes; where an image may begin
DAMAGED = (3, 4, 10)  # nvjpegStatus_t: a bad, unsupported or incomplete file
NO_MEMORY = 5


class NvJpegError(Exception):
    """nvJPEG does not work here, or has failed for another reason than a damaged file."""


class NvJpeg:
    """Decode batches of JPEG files to images uint8 (3,H,W) that lie in one block of memory.

    The files uint8 (L,) are in host memory and must not change until the stream has done the work.
    Raises RuntimeError if one of the files cannot be decoded, and NvJpegError for other failures.
    """

    def __init__(self, device: torch.device, backends: Iterable[str] = BACKENDS) -> None:
        self.device = device
        self.lock = threading.Lock()
        self.batch = 0  # the batch size for which the state was initialised
        self.kept: tuple[Any, ...] = ()
        self.state = ctypes.c_void_p()
        with torch.cuda.device(device):
            self.library, self.handle = _created(backends)
            self._call("nvjpegJpegStateCreate", ctypes.byref(self.state))

    def __call__(self, files: list[Tensor], sides: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the images of some files, whose sides are (height, width)."""
        with self.lock, torch.cuda.device(self.device):
            return self._decoded(files, sides)

    def _decoded(self, files: list[Tensor], sides: Sequence[Sequence[int]]) -> list[Tensor]:
        count = len(files)
        places, total = _places(sides)
        # zeros: if a damaged file is not noticed, the same pixels are missing after a restart
        flat = torch.zeros(total, dtype=torch.uint8, device=self.device)
        tables = (
            np.array([file.data_ptr() for file in files], np.uint64),
            np.array([len(file) for file in files], np.uint64),
            _targets(flat.data_ptr(), places),
        )
        stream = torch.cuda.current_stream(self.device)
        # The engine writes when it is called, even if work is queued on the stream, and its state
        # must not be initialised while it decodes.
        stream.synchronize()
        self.kept = (flat, tables)  # read and written until the stream has done the work
        if count != self.batch:
            self.batch = 0
            self._call("nvjpegDecodeBatchedInitialize", self.state, count, 1, PLANES)
        pointers = [ctypes.c_void_p(table.ctypes.data) for table in tables]
        self.batch = 0  # a batch that fails must be initialised again
        queue = ctypes.c_void_p(stream.cuda_stream)
        self._call("nvjpegDecodeBatched", self.state, *pointers, queue)
        self.batch = count
        return [
            flat[first : first + 3 * height * width].view(3, height, width)
            for first, height, width in places.tolist()
        ]

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library with the handle."""
        _check(name, getattr(self.library, name)(self.handle, *arguments))


def _created(backends: Iterable[str]) -> tuple[Any, ctypes.c_void_p]:
    """Return the first library that works on the current device, and a handle of it."""
    for library in _libraries():
        for name in backends:
            handle = ctypes.c_void_p()
            if not library.nvjpegCreateEx(BACKENDS[name], None, None, FLAGS, ctypes.byref(handle)):
                return library, handle
    raise NvJpegError("no libnvjpeg that works on this device was found")


def _places(sides: Sequence[Sequence[int]]) -> tuple[Any, int]:
    """Return the first byte, height and width int64 (n,3) of each image, and the bytes of all."""
    height, width = np.array(sides, np.int64).reshape(-1, 2).T
    ends = np.cumsum(-(-3 * height * width // ALIGNED) * ALIGNED)
    firsts = np.concatenate([[0], ends[:-1]])
    return np.stack([firsts, height, width], 1), int(ends[-1])


def _targets(start: int, places: Any) -> Any:
    """Return nvjpegImage_t of each image: four pointers to planes, and four lengths of a row."""
    table = np.zeros((len(places), 8), np.uint64)
    firsts, height, width = places.T
    for plane in range(3):
        table[:, plane] = start + firsts + plane * height * width
        table[:, 4 + plane] = width
    return table


def _check(name: str, code: int) -> None:
    """Raise the error of a status that is not 0."""
    text = f"{name} of nvJPEG failed with status {code}"
    if code in DAMAGED:
        raise RuntimeError(text)
    if code == NO_MEMORY:
        raise torch.OutOfMemoryError(text)
    if code:
        raise NvJpegError(text)


def _libraries() -> Iterator[Any]:
    """Yield nvJPEG's shared libraries that can be loaded."""
    for name in _names():
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if hasattr(library, "nvjpegDecodeBatched"):
            yield library


def _names() -> Iterator[str]:
    """Yield names and paths under which the library may be found."""
    for package in ("torchvision", "nvidia"):
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            folder = Path(root)
            near = [folder.parent / "torchvision.libs"] if package == "torchvision" else [folder]
            for place in near:
                yield from sorted(map(str, place.glob("**/libnvjpeg[-.]*so*")))
    found = ctypes.util.find_library("nvjpeg")
    yield from [found] if found else []
    yield from sorted(map(str, Path("/usr/local/cuda/lib64").glob("libnvjpeg.so*")))
