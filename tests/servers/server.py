"""A server as a child process: started, watched, stopped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Final, Self

PORTS: Final = range(20_000, 32_000)
"""Below the ports that systems give to outgoing connections: none of them takes a server's while it is restarted."""

READY_POLL_S: Final = 0.05

LOG_LINES: Final = 40
"""Lines of its log that an error shows."""

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
_SPAWNER: Final = ThreadPoolExecutor(1, thread_name_prefix="servers")
"""Linux takes the end of the thread that started a process for its parent's death: this one lasts."""


class ServerFailed(Exception):
    """It ended by itself or did not come up; the message ends with the last lines of its log."""


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


class Server:
    """Base of all servers; see the package's docstring. As a context manager: started, and stopped in any case.

    Args:
        folder: an empty one, the server's alone. None: a temporary one, which goes with the server.
    """

    name: ClassVar[str]
    usual_port: ClassVar[int] = 0
    """Where ``make servers`` starts it, as pages of the docs name it; 0: anywhere."""
    start_s: ClassVar[float] = 600.0
    """Time to become ready: an idle machine needs a tenth of it, one that runs other tests needs more."""
    stop_s: ClassVar[float] = 30.0
    """Time to stop in order; then it is killed."""
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path | None = None) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix=f"ferryman-{self.name}-")
        self.folder = folder or Path(self._temporary.name)  # type: ignore[union-attr]
        self.folder.chmod(0o755)
        self.port = self.another_port()
        self.home = Path()
        self._process: subprocess.Popen[bytes] | None = None

    # --- what a server says -------------------------------------------------------------------------------------------

    @classmethod
    def install(cls) -> Path:
        """Download what is missing, once a machine. Raises ``Missing``."""
        raise NotImplementedError

    def layout(self) -> None:
        """Write configuration and an empty data folder under ``self.folder``; once, before the first start."""

    def command(self) -> list[str]:
        """The process. It may fork others: they are of its group."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """What its environment has beside ours."""
        return {}

    def ready(self) -> bool:
        """Does it answer as it should? May raise ``OSError`` for no."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """Where it is reached."""
        raise NotImplementedError

    # --- what is done with it -----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it and wait until it is ready. Raises ``Missing`` or ``ServerFailed``."""
        assert self._process is None, f"{self.name} is running"
        if self.home == Path():
            self.home = self.install()
            self.layout()
        with self.log.open("ab") as log:
            self._process = _SPAWNER.submit(
                subprocess.Popen,
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.environment()},
                start_new_session=True,  # Ctrl-C is for us: we stop it
                preexec_fn=_die_with_parent,
            ).result()
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop it in order, with ``stop_signal``; killed after ``stop_s``. Its data stay."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(self.stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(self.stop_s)
        self.kill()

    def kill(self) -> None:
        """kill -9, it and its children."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        assert self._process, f"{self.name} is not running"
        return self._process.pid

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.folder / f"{self.name}.log"

    def close(self) -> None:
        """Stop it; a temporary folder goes too."""
        self.stop()
        if self._temporary:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    def another_port(self) -> int:
        """A port of 127.0.0.1 that nobody listens at."""
        while True:
            port = random.choice(PORTS)
            if _is_free(port):
                return port

    def take_usual_port(self) -> None:
        """Start at the port that pages of the docs name, if nobody listens there."""
        if self.usual_port and _is_free(self.usual_port):
            self.port = self.usual_port

    def answers(self, path: str = "", timeout_s: float = 5.0) -> bool:
        """Is a GET of ``url + path`` answered with 200? For ``ready``."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=timeout_s) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _await_ready(self) -> None:
        assert self._process
        give_up = time.monotonic() + self.start_s
        while True:
            with contextlib.suppress(OSError):
                if self.ready():
                    return
            if self._process.poll() is not None:
                raise ServerFailed(f"{self.name} ended by itself, exit {self._process.returncode}{self._last_words()}")
            if time.monotonic() > give_up:
                raise ServerFailed(f"{self.name} was not ready after {self.start_s:g} s{self._last_words()}")
            time.sleep(READY_POLL_S)

    def describe(self) -> str:
        """Say how it is now: where it is reached, whether it runs, the last lines of its log."""
        how = "is running" if self.running else "was stopped"
        if self._process is not None and self._process.poll() is not None:
            how = f"ended by itself with {self._process.returncode}"
        return f"{self.name}, port {self.port}, {how}{self._last_words()}"

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:] if self.log.exists() else []
        return f". The end of {self.log}:\n" + "\n".join(lines)


def _die_with_parent() -> None:
    """A test run that is killed leaves no server behind (Linux). A program that changes its user forgets this:
    ``setpriv`` has ``--pdeathsig`` for it."""
    if _LIBC:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
