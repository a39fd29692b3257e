"""Pretrain without labels, fine-tune with a few labels, and classify new images.

    python examples/fine_tune.py                    about 5 minutes on 2 CPU cores
    python examples/fine_tune.py --quick            short trainings, to see that it runs

The script draws its own images. With your own folders it is three commands:

    antipode pretrain --data folder:photos --method dcl --out runs/photos
    antipode finetune runs/photos --data folder:labelled --out model
    antipode predict model --data folder:new --out new.csv
"""

import argparse
import tempfile
from pathlib import Path

from PIL import Image

import antipode
from antipode.data.sources.catalog import load


def main() -> None:
    """Compare fine-tuning after pretraining with training from scratch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="train shortly on few images")
    args = parser.parse_args()
    per_class, epochs, tuning = (4, 1, 1) if args.quick else (20, 30, None)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        draw(folder / "labelled", per_class)
        draw(folder / "new", 2, first=per_class)
        run = antipode.pretrain("shapes.dcl", epochs=epochs, out=folder / "run", quiet=True)
        network = run.recipe.backbone.name
        for name, start in {"pretrained": run, "from scratch": f"random:{network}"}.items():
            model = antipode.finetune(
                start, folder / "labelled", folder / name, epochs=tuning, quiet=True
            )
            print(f"{name}: {model.line()}")
        found = antipode.predict(folder / "pretrained", folder / "new")
        for place in range(3):
            print(f"{found.names[place]}: {found.predicted[place]}")


def draw(folder: Path, count: int, first: int = 0) -> None:
    """Write `count` embedded drawings of each class as PNG files in class folders."""
    source = load("shapes").train
    assert source is not None and source.labels is not None
    for label in source.labels.unique().tolist():
        home = folder / f"kind{label}"
        home.mkdir(parents=True)
        places = (source.labels == label).nonzero()[first : first + count, 0]
        images, _ = source.take(places)  # uint8 (B,3,H,W)
        for place, image in zip(places.tolist(), images, strict=True):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(home / f"{place}.png")


if __name__ == "__main__":
    main()
