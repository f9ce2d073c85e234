"""SMB, as Samba serves it."""

from __future__ import annotations

import getpass
import socket
import subprocess
from pathlib import Path
from typing import Final

from tests.servers.cache import Missing, installed_by_apt
from tests.servers.server import Server

USER: Final = "ann"
PASSWORD: Final = "sm4ll-sh4re"
SHARE: Final = "docs"
_SMBD: Final = "/usr/sbin/smbd"

CONFIG: Final = """\
[global]
workgroup = TESTS
server role = standalone server
smb ports = {port}
bind interfaces only = yes
interfaces = 127.0.0.1/8
lock directory = {folder}/lock
state directory = {folder}/state
cache directory = {folder}/cache
private dir = {folder}/private
pid directory = {folder}/pid
ncalrpc dir = {folder}/ncalrpc
log file = {folder}/samba.log
passdb backend = smbpasswd
smb passwd file = {folder}/private/smbpasswd
username map = {folder}/users
disable netbios = yes
disable spoolss = yes
load printers = no
server min protocol = SMB2
map to guest = Never
[{share}]
path = {folder}/files
read only = no
force user = {me}
"""


class Smb(Server):
    """One share; one user, whom Samba takes for the one that runs the tests."""

    name = "smb"
    usual_port = 4450

    @classmethod
    def install(cls) -> Path:
        installed_by_apt("samba", _SMBD)
        if not Path(_SMBD).exists():
            raise Missing("Samba's smbd is missing: install it (Debian, Ubuntu: apt-get install samba)")
        return Path("/usr")

    def layout(self) -> None:
        for name in ("lock", "state", "cache", "private", "pid", "ncalrpc", "files"):
            (self.folder / name).mkdir()
        me = getpass.getuser()
        (self.folder / "users").write_text(f"{me} = {USER}\n")
        config = CONFIG.format(port=self.port, folder=self.folder, share=SHARE, me=me)
        (self.folder / "smb.conf").write_text(config)
        set_password = ["smbpasswd", "-c", str(self.folder / "smb.conf"), "-s", "-a", me]
        done = subprocess.run(
            set_password, input=f"{PASSWORD}\n{PASSWORD}\n", capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Missing(f"Samba takes no user: {(done.stdout + done.stderr).strip()[-300:]}")

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def command(self) -> list[str]:
        return [_SMBD, "--foreground", "--no-process-group", "--debug-stdout", "-s", str(self.folder / "smb.conf")]

    def ready(self) -> bool:
        socket.create_connection(("127.0.0.1", self.port), 5).close()
        return True

    @property
    def url(self) -> str:
        return f"smb://127.0.0.1:{self.port}/{SHARE}"

    @property
    def login(self) -> dict[str, str]:
        """The environment of a client."""
        return {"SMB_USER": USER, "SMB_PASSWORD": PASSWORD}
