"""The command: all that is slow to import is imported where Ctrl-C already ends in a sentence."""

import sys


def main() -> None:
    """Run it."""
    try:
        from antipode.cli import main as run  # noqa: PLC0415
    except KeyboardInterrupt:
        print("antipode: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
