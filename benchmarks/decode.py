"""Measure JPEG decoders in images per second.

    python benchmarks/decode.py [FOLDER] [--seconds 2] [--json]

Each decoder turns the JPEG files of FOLDER (or 32 synthetic photographs of 500 x 375 pixels) into
RGB uint8 tensors. It uses one thread, and the files are in memory. nvJPEG decodes them in batches
on a CUDA device. The script also prints each decoder's largest difference to Pillow.
"""

import argparse
import io
import json
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from antipode.data.sources.decode import decode

Decoder = Callable[[list[bytes]], list[torch.Tensor]]
warnings.filterwarnings("ignore", "The image decoding", DeprecationWarning)


def photographs(folder: Path | None) -> list[bytes]:
    """Return up to 256 JPEG files of a folder, or 32 synthetic ones."""
    if folder:
        return [file.read_bytes() for file in sorted(folder.rglob("*.jp*g"))[:256]]
    files = []
    for seed in range(32):
        noise = np.random.default_rng(seed).integers(0, 256, (47, 63, 3), dtype=np.uint8)
        image = Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return files


def pillow(files: list[bytes]) -> list[torch.Tensor]:
    """Decode with Pillow, the reference."""
    return [chw(np.array(Image.open(io.BytesIO(data)).convert("RGB"))) for data in files]


def chw(array: np.ndarray) -> torch.Tensor:
    """Return an image (H,W,C) as a tensor (C,H,W)."""
    return torch.from_numpy(array).permute(2, 0, 1)


def raw(data: bytes) -> torch.Tensor:
    """Return bytes as a uint8 tensor."""
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def decoders() -> dict[str, Decoder]:
    """Return the decoders that are installed, by name."""
    decoders: dict[str, Decoder] = {
        "Pillow": pillow,
        "torchvision.io": lambda files: [
            decode_jpeg(raw(data), ImageReadMode.RGB) for data in files
        ],
        "antipode": lambda files: [decode(data) for data in files],
    }
    try:
        from torchcodec.decoders import decode_jpeg as codec
    except (ImportError, OSError, RuntimeError):
        pass
    else:
        decoders["torchcodec"] = lambda files: [codec(raw(data)) for data in files]
    try:
        import cv2
    except ImportError:
        pass
    else:
        cv2.setNumThreads(1)
        decoders["OpenCV"] = lambda files: [
            chw(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)) for data in files
        ]
    if torch.cuda.is_available():
        decoders["nvJPEG"] = nvjpeg
    return decoders


def nvjpeg(files: list[bytes]) -> list[torch.Tensor]:
    """Decode one batch on the GPU."""
    images = decode_jpeg([raw(data) for data in files], ImageReadMode.RGB, device="cuda")
    torch.cuda.synchronize()
    return images


def rate(decoder: Decoder, files: list[bytes], seconds: float) -> float:
    """Return the images per second of a decoder, after one pass to warm up."""
    decoder(files)
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        decoder(files)
        count += len(files)
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=2, help="duration of one measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = photographs(arguments.folder)
    reference = pillow(files)
    rows = {}
    for name, decoder in decoders().items():
        largest = max(
            int((a.cpu().int() - b.int()).abs().max())
            for a, b in zip(decoder(files), reference, strict=True)
        )
        speed = round(rate(decoder, files, arguments.seconds))
        rows[name] = {"images/s": speed, "max difference": largest}
    size = sum(map(len, files)) / len(files) / 1000
    about = f"{len(files)} files of {size:.0f} kB"
    about += f", torchvision {torchvision.__version__}, {platform.machine()}"
    if arguments.json:
        print(json.dumps({"about": about, "rows": rows}))
        return
    print(about)
    for name, row in rows.items():
        speed = f"{row['images/s']:7,} images/s"
        print(f"{name:16} {speed}   max difference to Pillow {row['max difference']}")


if __name__ == "__main__":
    main()
