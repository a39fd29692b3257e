"""NVIDIA's nvJPEG, called directly: decode JPEG files on the current CUDA stream.

torchvision and torchcodec call nvJPEG, too, but on a stream with the priority of the training step.
Its many small kernels then wait for those of the step. Here they run on the stream of the caller,
which has a higher priority, and write all images of a batch to one block of memory.

The library comes with torchvision, with NVIDIA's packages, or with the CUDA toolkit.
"""

import ctypes
import ctypes.util
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

HARDWARE, GPU_HYBRID = 3, 2  # nvjpegBackend_t: the engine for JPEG; kernels, also for Huffman codes
PLANES = 3  # nvjpegOutputFormat_t: RGB, one plane after the other
ALIGNED = 512  # bytes; where an image may begin
# bytes of which nvJPEG allocates a multiple. Batches differ in size, and without this a larger one
# would be allocated anew, for which CUDA waits until the whole device is idle.
PADDING = 16 << 20
CREATE = "nvjpegCreateEx"


class NvJpeg:
    """Decode batches of JPEG files to images uint8 (3,H,W) that lie in one block of memory.

    The files uint8 (L,) are in host memory and must not change until the stream has done the work.
    Raises RuntimeError if nvJPEG does not work on the device, or cannot decode one of the files.
    """

    def __init__(self, device: torch.device) -> None:
        library = _library()
        if library is None:
            raise RuntimeError("libnvjpeg was not found")
        self.library = library
        self.device = device
        self.batch = 0  # the batch size for which the state was initialised
        self.handle = ctypes.c_void_p()
        self.state = ctypes.c_void_p()
        with torch.cuda.device(device):
            codes = [
                self.library.nvjpegCreateEx(backend, None, None, 0, ctypes.byref(self.handle))
                for backend in (HARDWARE, GPU_HYBRID)
                if not self.handle
            ]
            _check(CREATE, min(codes))
            for memory in ("Device", "Pinned"):
                name = f"nvjpegSet{memory}MemoryPadding"
                _check(name, getattr(library, name)(ctypes.c_size_t(PADDING), self.handle))
            self._call("nvjpegJpegStateCreate", ctypes.byref(self.state))

    def __call__(self, files: list[Tensor], sides: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the images of some files, whose sides are (height, width)."""
        count = len(files)
        places, total = _places(sides)
        flat = torch.empty(total, dtype=torch.uint8, device=self.device)
        # nvJPEG reads them while it decodes, so they must exist until the next call
        self.tables = (
            np.array([file.data_ptr() for file in files], np.uint64),
            np.array([len(file) for file in files], np.uint64),
            _targets(flat.data_ptr(), places),
        )
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
        if count != self.batch:
            self.batch = 0
            self._call("nvjpegDecodeBatchedInitialize", self.state, count, 1, PLANES)
        pointers = [ctypes.c_void_p(table.ctypes.data) for table in self.tables]
        self.batch = 0  # a batch that fails must be initialised again
        self._call("nvjpegDecodeBatched", self.state, *pointers, stream)
        self.batch = count
        return [
            flat[first : first + 3 * height * width].view(3, height, width)
            for first, height, width in places.tolist()
        ]

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library with the handle."""
        _check(name, getattr(self.library, name)(self.handle, *arguments))


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
    if code:
        raise RuntimeError(f"{name} of nvJPEG failed with status {code}")


@cache
def _library() -> Any:
    """Return nvJPEG's shared library, or None if there is none."""
    for name in _names():
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if hasattr(library, CREATE):
            return library
    return None


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
