"""`python -m tests.servers [NAME ...]`: start servers (all of them), print their URLs, stop them on Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys

from tests.servers.cache import Missing, cache_folder
from tests.servers.registry import known
from tests.servers.server import Server, ServerFailed


def main(names: list[str]) -> int:
    """Exit code: 2 for a name that is none, 1 if no server could be started, else 0."""
    servers = known()
    if unknown := [name for name in names if name not in servers]:
        print(f"no such server: {', '.join(unknown)}. There are: {', '.join(servers)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        started = [name for name in names or servers if _started(servers[name], stack)]
        if not started:
            return 1
        print("Ctrl-C stops them.", flush=True)
        signal.pause()
    return 0


def _started(kind: type[Server], stack: contextlib.ExitStack) -> bool:
    print(f"{kind.name}: starting (downloads are kept in {cache_folder()})", flush=True)
    try:
        server = kind()
        server.take_usual_port()
        stack.enter_context(server)
    except (Missing, ServerFailed) as e:
        print(f"{kind.name}: {e}", file=sys.stderr, flush=True)
        return False
    print(f"{kind.name}: {server.url}  (log: {server.log})", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
