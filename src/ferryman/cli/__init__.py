"""The ``ferryman`` command."""

import os
import sys
from itertools import pairwise

__all__ = ["main"]

_SEED, _SEEDED = "PYTHONHASHSEED", "FERRYMAN_SEEDED"


def main() -> None:
    """Run the command line and exit with its code."""
    if _needs_helpers(sys.argv[1:]):
        _seed_hashes()
        from ferryman.engine.runner import fork_server

        fork_server.start_ahead()
    from ferryman.cli.app import start
    from ferryman.cli.lazy_pandas import defer_pandas

    defer_pandas()
    sys.exit(start(sys.argv[1:]))


def _seed_hashes() -> None:
    """Begin this process again with the seed of hashes that workers have, so that helper processes can be forked from
    it. A seed is chosen when Python starts, which takes less than loading their modules in a process of their own."""
    if os.environ.pop(_SEEDED, None):
        del os.environ[_SEED]
    elif (
        _SEED not in os.environ
        and os.path.basename(sys.argv[0]) in ("ferryman", "__main__.py")  # it is no program that calls ``main``
        and not sys.flags.ignore_environment
        and sys.executable
    ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _SEED: "0", _SEEDED: "1"})


def _needs_helpers(arguments: list[str]) -> bool:
    """Return whether a command will read sources in helper processes, so that these load their modules meanwhile."""
    if arguments[:1] != ["run"] or "--help" in arguments or "PYSPARK_GATEWAY_PORT" in os.environ:
        return False
    masters = [value for option, value in pairwise(arguments) if option == "--master"]
    masters += [each.removeprefix("--master=") for each in arguments if each.startswith("--master=")]
    return all(each.startswith("local") for each in masters)
