"""The ``ferryman`` command."""

import os
import sys
from itertools import pairwise

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    from ferryman.engine.runner import fork_server

    if _needs_helpers(sys.argv[1:]):
        fork_server.start_ahead()
    from ferryman.cli.app import start
    from ferryman.cli.lazy_pandas import defer_pandas

    defer_pandas()
    sys.exit(start(sys.argv[1:]))


def _needs_helpers(arguments: list[str]) -> bool:
    """Return whether a command will read sources in helper processes, so that these load their modules meanwhile."""
    if arguments[:1] != ["run"] or "--help" in arguments or "PYSPARK_GATEWAY_PORT" in os.environ:
        return False
    masters = [value for option, value in pairwise(arguments) if option == "--master"]
    masters += [each.removeprefix("--master=") for each in arguments if each.startswith("--master=")]
    return all(each.startswith("local") for each in masters)
