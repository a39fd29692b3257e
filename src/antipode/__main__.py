"""The entry point of the command line.

Slow imports happen inside `main`, where Ctrl-C prints a sentence and not a traceback.
"""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from antipode.cli import main as run  # noqa: PLC0415  (Ctrl-C while it loads is handled)
    except KeyboardInterrupt:
        print("antipode: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
