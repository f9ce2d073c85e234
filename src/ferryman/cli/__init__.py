"""The ``ferryman`` command."""

import os
import sys
from itertools import pairwise

__all__ = ["main"]

_SEED, _SEEDED = "PYTHONHASHSEED", "FERRYMAN_SEEDED"


def main() -> None:
    """Run the command line and exit with its code."""
    is_own = _is_own_process()
    if _needs_helpers(sys.argv[1:]):
        if is_own:
            _seed_hashes()
        from ferryman.engine.runner import fork_server

        fork_server.start_ahead()
    from ferryman.cli.app import start
    from ferryman.cli.lazy_pandas import defer_pandas

    defer_pandas()
    code = start(sys.argv[1:])
    if is_own:
        _end(code)
    sys.exit(code)


def _is_own_process() -> bool:
    """Return whether this process does nothing but this command: no program calls ``main``, none watches it."""
    callers, frame = set(), sys._getframe(1)
    while frame is not None:
        callers.add(frame.f_globals.get("__name__"))
        frame = frame.f_back  # type: ignore[assignment]
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # None: it is a script
    started = os.path.basename(getattr(sys.modules["__main__"], "__file__", None) or "") if spec is None else spec.name
    return started in ("ferryman", f"{__name__}.__main__") and callers <= {__name__, "__main__", "runpy"}


def _seed_hashes() -> None:
    """Begin this process again with the seed of hashes that workers have, so that helper processes can be forked from
    it. A seed is chosen when Python starts, which takes less than loading their modules in a process of their own."""
    if os.environ.pop(_SEEDED, None):
        del os.environ[_SEED]
    elif _SEED not in os.environ and not sys.flags.ignore_environment and sys.executable:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _SEED: "0", _SEEDED: "1"})


def _end(code: int) -> None:
    """End this process as Python would, without taking apart what it has loaded: that takes a tenth of a run which has
    nothing to do. Returns only if what was printed cannot be written."""
    import atexit
    import gc
    import io
    import threading

    threading._shutdown()  # type: ignore[attr-defined]  # multiprocessing ends its processes like this
    atexit._run_exitfuncs()
    try:
        for each in gc.get_objects():
            if issubclass(type(each), io.IOBase) and not each.closed:
                each.flush()  # a plan may have left one open
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


def _needs_helpers(arguments: list[str]) -> bool:
    """Return whether a command will read sources in helper processes, so that these load their modules meanwhile."""
    if arguments[:1] != ["run"] or "--help" in arguments or "PYSPARK_GATEWAY_PORT" in os.environ:
        return False
    masters = [value for option, value in pairwise(arguments) if option == "--master"]
    masters += [each.removeprefix("--master=") for each in arguments if each.startswith("--master=")]
    return all(each.startswith("local") for each in masters)
