"""The ``ferryman`` command."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    from ferryman.cli.app import load_ledger, start

    load_ledger(sys.argv[1:])
    sys.exit(start(sys.argv[1:]))
