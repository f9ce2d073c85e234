"""The ``ferryman`` command."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    from ferryman.cli.app import start

    sys.exit(start(sys.argv[1:]))
