"""The main job on the embedded images: pretrain without labels, score, write the report. `make demo` runs it.

python examples/demo.py                 about 2 minutes on 2 CPU cores
python examples/demo.py --quick         one epoch, to see it run
"""

import argparse
import time
from pathlib import Path

import antipode


def main() -> None:
    """Print the scores next to those of an untrained network."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    begun = time.monotonic()
    print("DCL learns ten kinds of shapes from 5,000 drawings, without a label ...")
    out = args.out.with_name("demo-quick") if args.quick else args.out
    run = antipode.pretrain("shapes.dcl", out=out, epochs=1 if args.quick else None, overwrite=True)
    protocols = ["knn", "knn20"]
    scores = antipode.evaluate(run, protocols)
    network = f"random:{run.recipe.backbone.name}"
    untrained = antipode.evaluate(
        network, protocols, data="shapes", out=out.with_name("demo-untrained")
    )

    print(f"\n{'':12}{'untrained':>12}{'pretrained':>12}")
    for name, score in scores.items():
        print(f"{name:12}{untrained[name].value:11.1f}%{score.value:11.1f}%")
    print(f"\nreport: {antipode.report([run]).resolve()}")
    print(f"{time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
