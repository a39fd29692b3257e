"""The main job on the embedded images: pretrain without labels, score, write the report. `make demo` runs it.

python examples/demo.py                 about 2 minutes on 2 CPU cores
python examples/demo.py --quick         one epoch, to see it run
"""

import argparse
import time
from pathlib import Path

import torch

import antipode
from antipode.api import eye
from antipode.data.catalog import load
from antipode.evaluation import protocol
from antipode.evaluation.features import extract
from antipode.nets.backbone import backbone


def main() -> None:
    """Print the scores next to those of an untrained network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    begun = time.monotonic()
    print("DCL learns ten kinds of shapes from 5,000 drawings, without a label ...")
    out = args.out.with_name("demo-quick") if args.quick else args.out
    run = antipode.pretrain("shapes.dcl", out=out, epochs=1 if args.quick else None, overwrite=True)
    scores = antipode.evaluate(run, ["knn", "knn20"])

    torch.manual_seed(0)
    recipe, splits = run.recipe, load("shapes")
    untrained = backbone(recipe.backbone.name, stem=recipe.backbone.stem)
    look = eye(recipe, splits)
    train, test = extract(untrained, look, splits.train), extract(untrained, look, splits.test or splits.train)
    print(f"\n{'':10}{'untrained':>12}{'pretrained':>12}")
    for name, score in scores.items():
        print(f"{name:10}{protocol.run(name, train, test)[0]:11.1f}%{score.value:11.1f}%")
    print(f"\nreport: {antipode.report([run]).resolve()}")
    print(f"{time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
