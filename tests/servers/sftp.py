"""SFTP, as OpenSSH's own server serves it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Final

from tests.servers.cache import Missing, installed_by_apt
from tests.servers.server import Server

_SSHD: Final = "/usr/sbin/sshd"
_SFTP: Final = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")

CONFIG: Final = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
MaxStartups 100
Subsystem sftp {sftp} {options}
"""


class Sftp(Server):
    """Takes the key in ``user_key`` of the user that runs the tests. Serves the file system; ``files`` is for tests."""

    name = "sftp"
    usual_port = 2222
    options = ""

    @classmethod
    def install(cls) -> Path:
        installed_by_apt("openssh-server", _SSHD)
        if not Path(_SSHD).exists() or not any(map(os.path.exists, _SFTP)) or not shutil.which("ssh-keygen"):
            raise Missing("OpenSSH's sshd is missing: install it (Debian, Ubuntu: apt-get install openssh-server)")
        return Path("/usr")

    def layout(self) -> None:
        self.files.mkdir()
        for key in ("host_key", "user_key"):
            made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)]
            subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
        shutil.copy(self.folder / "user_key.pub", self.folder / "authorized_keys")
        kind, key_text, *_ = (self.folder / "host_key.pub").read_text().split()
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {kind} {key_text}\n")
        sftp = next(path for path in _SFTP if os.path.exists(path))
        values = {"port": self.port, "folder": self.folder, "sftp": sftp, "options": self.options}
        (self.folder / "sshd_config").write_text(CONFIG.format(**values))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where sshd separates its privileges

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def command(self) -> list[str]:
        return [_SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]

    def kill(self) -> None:
        """Also the sessions, each of which is a process group of its own."""
        sessions = _children(self._process.pid) if self._process else []
        super().kill()
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 5) as asked:
            return asked.recv(4) == b"SSH-"

    @property
    def url(self) -> str:
        return f"sftp://127.0.0.1:{self.port}{self.files}"

    @property
    def login(self) -> dict[str, object]:
        """Options of a client."""
        return {"client_keys": [str(self.folder / "user_key")], "known_hosts": str(self.known_hosts)}


def _children(pid: int) -> list[int]:
    """All processes below one."""
    try:
        own = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return own + [below for child in own for below in _children(child)]


class OldSftp(Sftp):
    """Does not offer to rename over a file."""

    name = "old-sftp"
    usual_port = 0
    options = "-P posix-rename"
