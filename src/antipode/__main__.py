"""The entry point of the command line.

Slow imports happen inside `main`, where Ctrl-C prints a sentence and not a traceback.
"""

import sys

from antipode.threads import prepare

# commands that compute; for all others the number of threads does not matter
COMPUTES = (
    *("pretrain", "evaluate", "analyse", "embed", "report", "reproduce", "sweep"),
    *("finetune", "predict", "export", "pack"),
)


def main() -> None:
    """Run the command line."""
    try:
        from antipode.cli import main as run  # noqa: PLC0415  (Ctrl-C while it loads is handled)

        if sys.argv[1:2] and sys.argv[1] in COMPUTES and "--help" not in sys.argv:
            prepare()  # before a command imports torch
    except KeyboardInterrupt:
        print("antipode: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
