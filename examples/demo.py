"""Pretrain on the embedded images without labels, score the run and write its report.

    python examples/demo.py                 about 2 minutes on 2 CPU cores
    python examples/demo.py --quick         one epoch, to see that it runs

`make demo` runs this script.
"""

import argparse
import time
from pathlib import Path

import antipode


def main() -> None:
    """Print the scores of the pretrained network next to those of an untrained one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="the run folder")
    parser.add_argument(
        "--quick", action="store_true", help="train for one epoch, into demo-quick beside --out"
    )
    args = parser.parse_args()
    start = time.monotonic()
    print("DCL learns ten kinds of shapes from 5,000 drawings without labels ...")
    out = args.out.with_name("demo-quick") if args.quick else args.out
    epochs = 1 if args.quick else None
    run = antipode.pretrain("shapes.dcl", out=out, epochs=epochs, overwrite=True)
    protocols = ["knn", "knn20"]
    scores = antipode.evaluate(run, protocols)
    untrained = antipode.evaluate(
        f"random:{run.recipe.backbone.name}",
        protocols,
        data="shapes",
        out=out.with_name("demo-untrained"),
    )

    print(f"\n{'':12}{'untrained':>12}{'pretrained':>12}")
    for name, score in scores.items():
        print(f"{name:12}{untrained[name].value:11.1f}%{score.value:11.1f}%")
    print(f"\nreport: {antipode.report([run]).resolve()}")
    print(f"{time.monotonic() - start:.0f} s in total")


if __name__ == "__main__":
    main()
