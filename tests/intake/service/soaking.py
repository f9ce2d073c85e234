"""A process that serves a place until it is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.intake.service.place import Place

SESSION_S: Final = 1.5


class Soaking:
    """Such a process."""

    def __init__(self, folder: Path, url: str) -> None:
        self._log = (folder / "soaking.log").open("ab")
        command = [sys.executable, "-m", __name__, str(folder), url]
        self._process = subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=self._log, stderr=self._log)

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """And wait for its end. It had not ended by itself."""
        assert self._process.poll() is None, "it has ended by itself: see soaking.log"
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    @property
    def peak_bytes(self) -> int:
        """The most memory that it has had so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def main(folder: str, url: str) -> None:
    """Serve."""
    place = Place(Path(folder), SESSION_S, url)
    place.said.scans = -1_000_000
    place.serve(once=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
