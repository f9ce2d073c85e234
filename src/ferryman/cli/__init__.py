"""The ``ferryman`` command."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    from ferryman.cli.app import start
    from ferryman.cli.lazy_pandas import defer_pandas

    defer_pandas()
    sys.exit(start(sys.argv[1:]))
