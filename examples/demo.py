"""Pretrain on the embedded images without labels, score the run and write its report.

    python examples/demo.py                 about 3 minutes on two idle CPU cores
    python examples/demo.py --quick         one epoch, to see that it runs
    python examples/demo.py --fresh         start over

`make demo` runs this script. Stop it with Ctrl-C, and run it again to resume.
"""

import argparse
import sys
import time
from pathlib import Path

from antipode.threads import prepare

prepare()  # threads that wait must not spin; this has to precede the import of torch

import antipode  # noqa: E402


def main() -> None:
    """Print the scores of the pretrained network next to those of an untrained one."""
    args = arguments()
    start = time.monotonic()
    out = args.out.with_name("demo-quick") if args.quick else args.out
    print("DCL learns ten kinds of shapes from 5,000 drawings without labels ...")
    if not args.fresh and (out / "backbone.safetensors").exists():
        print(f"{out} holds a finished run, which is used; --fresh trains it again.")
    run = antipode.pretrain(
        "shapes.dcl", out=out, epochs=1 if args.quick else None, overwrite=args.fresh
    )
    scores = antipode.evaluate(run, ["knn", "knn20"])

    print(f"\n{'':12}{'untrained':>12}{'pretrained':>12}")
    for name, score in scores.items():
        print(f"{name:12}{score.more['untrained']:11.1f}%{score.value:11.1f}%")
    print(f"\nreport: {antipode.report([run]).resolve()}")
    print(f"{time.monotonic() - start:.0f} s in total")


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="the run folder")
    parser.add_argument(
        "--quick", action="store_true", help="train for one epoch, into demo-quick beside --out"
    )
    parser.add_argument("--fresh", action="store_true", help="replace a run that the folder holds")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\nThe demo was stopped. Run it again to resume; --fresh starts over.")
        sys.exit(130)
    except ValueError as error:  # such as a run of another version in the folder
        sys.exit(f"{error}; --fresh starts over")
