"""Train a vision transformer on CIFAR-10 with the settings for transformers, and score it.

    python benchmarks/vit.py --out vit.json                        # MoCo v3, 100 epochs, on a GPU
    python benchmarks/vit.py --method byol --seed 1 --out byol.json
    python benchmarks/vit.py --depth 12 --epochs 300 --out deep.json

The network is timm's vit_tiny (width 192, 3 heads) with patches of 4 px, so that an image of 32 px
has 64 of them, and with 6 blocks in place of 12. All other settings are those of the recipe. The
speed and the time that is left are printed once a few steps have been measured.

The file has kNN accuracy and logistic regression on the test split, the same of the untrained
network, retrieval, and the health of the representation at the end: its effective rank, spread and
uniformity. With --run, the run folder is kept, and the same command resumes it. The environment
variable ANTIPODE_DATA names the folder with CIFAR-10.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import antipode
from antipode.files import finite
from machine import surroundings

PROTOCOLS = ["knn", "knn20", "linear-fast"]
HEALTH = ("loss", "rank", "spread", "uniformity", "similarity", "negative", "alignment")


def parsed() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="mocov3")
    parser.add_argument("--depth", type=int, default=6, help="number of blocks")
    parser.add_argument("--patch", type=int, default=4, help="side of a patch in pixels")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="+", default=[], help="key=value of the recipe")
    parser.add_argument("--run", type=Path, help="run folder; by default a temporary one")
    parser.add_argument("--out", type=Path, default=Path("vit.json"), help="the JSON file")
    return parser.parse_args()


def trained(args: argparse.Namespace, backbone: str, folder: Path) -> antipode.Run:
    """Train the network, with the estimate of the time in the output."""
    return antipode.pretrain(
        f"cifar10.{args.method}",
        backbone=backbone,
        epochs=args.epochs,
        batch=args.batch,
        seed=args.seed,
        out=folder,
        overrides=args.set,
    )


def scores(net: antipode.Run | str, folder: Path, protocols: list[str]) -> dict[str, Any]:
    """Return the scores of a run, or of a network that no run trained."""
    if isinstance(net, antipode.Run):
        found = antipode.evaluate(net, protocols)
    else:
        found = antipode.evaluate(net, protocols, data="cifar10", out=folder)
    return {name: score.json() for name, score in found.items()}


def last_health(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the last value of each measure of health."""
    found: dict[str, float] = {}
    for row in rows:
        found |= {name: row[name] for name in HEALTH if name in row}
    return found


def main() -> None:
    args = parsed()
    backbone = f"timm:vit_tiny_patch16_224?patch_size={args.patch},depth={args.depth}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.run or Path(temporary) / "run"
        start = time.perf_counter()
        run = trained(args, backbone, folder)
        seconds = time.perf_counter() - start
        rows = [row for row in run.metrics() if "loss" in row]
        speeds = sorted(row["images_per_second"] for row in rows)
        content = {
            "method": args.method,
            "backbone": backbone,
            "epochs": args.epochs,
            "batch": args.batch,
            "seed": args.seed,
            "set": args.set,
            "seconds": seconds,
            "images_per_second": speeds[len(speeds) // 2],
            "parameters": sum(weight.numel() for weight in run.backbone().parameters()),
            "optim": run.recipe.optim["network"].model_dump(),
            "health": last_health(rows),
            "machine": surroundings("torch", "timm", "antipode"),
        }
        write(args.out, content)  # the training is recorded, whatever happens to the scores
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        content["scores"] = scores(run, folder, [*PROTOCOLS, "retrieval"])
        write(args.out, content)
        content["untrained"] = scores(f"random:{backbone}", Path(temporary) / "net", PROTOCOLS)
        write(args.out, content)
    shown(content)


def write(file: Path, content: dict[str, Any]) -> None:
    """Write the JSON file."""
    file.write_text(json.dumps(finite(content), indent=1, allow_nan=False) + "\n")


def shown(content: dict[str, Any]) -> None:
    """Print the result."""
    print(
        f"{content['method']}, {content['backbone']}: {content['seconds']:.0f} s, "
        f"{content['images_per_second']:.0f} images/s"
    )
    for name, score in content["scores"].items():
        before = content["untrained"].get(name, {}).get("value", score["more"].get("untrained"))
        print(f"{name}: {score['value']:.2f} %, untrained {before:.2f} %")
    print(", ".join(f"{name} {value:.3g}" for name, value in content["health"].items()))


if __name__ == "__main__":
    main()
