"""JPEG decoders, images per second: python benchmarks/decode.py [FOLDER] [--seconds 2] [--json]

Decodes the JPEG files of FOLDER (or 32 made-up photographs of 500 x 375 pixels) to RGB uint8 tensors, one thread, bytes
in memory; nvJPEG decodes them in batches on a CUDA device. Every decoder's largest difference to Pillow is printed too.
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
    if folder:
        return [file.read_bytes() for file in sorted(folder.rglob("*.jp*g"))[:256]]
    made = []
    for seed in range(32):
        noise = np.random.default_rng(seed).integers(0, 256, (47, 63, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC).save(
            buffer, "JPEG", quality=90
        )
        made.append(buffer.getvalue())
    return made


def pillow(files: list[bytes]) -> list[torch.Tensor]:
    return [chw(np.array(Image.open(io.BytesIO(data)).convert("RGB"))) for data in files]


def chw(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).permute(2, 0, 1)


def raw(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def decoders() -> dict[str, Decoder]:
    found: dict[str, Decoder] = {
        "Pillow": pillow,
        "torchvision.io": lambda files: [
            decode_jpeg(raw(data), ImageReadMode.RGB) for data in files
        ],
        "antipode": lambda files: [decode(data) for data in files],
    }
    try:
        import cv2
    except ImportError:
        pass
    else:
        cv2.setNumThreads(1)
        found["OpenCV"] = lambda files: [
            chw(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)) for data in files
        ]
    if torch.cuda.is_available():
        found["nvJPEG"] = nvjpeg
    return found


def nvjpeg(files: list[bytes]) -> list[torch.Tensor]:
    images = decode_jpeg([raw(data) for data in files], ImageReadMode.RGB, device="cuda")
    torch.cuda.synchronize()
    return images


def rate(decoder: Decoder, files: list[bytes], seconds: float) -> float:
    decoder(files)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        decoder(files)
        count += len(files)
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = photographs(arguments.folder)
    truth, rows = pillow(files), {}
    for name, decoder in decoders().items():
        worst = max(
            int((a.cpu().int() - b.int()).abs().max())
            for a, b in zip(decoder(files), truth, strict=True)
        )
        rows[name] = {
            "images/s": round(rate(decoder, files, arguments.seconds)),
            "max difference": worst,
        }
    size = sum(map(len, files)) / len(files) / 1000
    about = f"{len(files)} files of {size:.0f} kB, torchvision {torchvision.__version__}, {platform.machine()}"
    if arguments.json:
        print(json.dumps({"about": about, "rows": rows}))
        return
    print(about)
    for name, row in rows.items():
        print(
            f"{name:16} {row['images/s']:7,} images/s   max difference to Pillow {row['max difference']}"
        )


if __name__ == "__main__":
    main()
