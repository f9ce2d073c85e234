"""Dovecot, an IMAP server, as Debian packages it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Final

from tests.servers.cache import Missing, installed_by_apt
from tests.servers.server import Server

PASSWORD: Final = "c0d-in-the-fj0rd"
"""Every user's; a test makes users of its own by logging in."""

PROGRAM: Final = "/usr/sbin/dovecot"
CONFIG: Final = """\
protocols = imap
listen = 127.0.0.1
base_dir = {folder}/run
state_dir = {folder}/state
log_path = /dev/stderr
ssl = {ssl}
{certificate}
disable_plaintext_auth = no
mail_max_userip_connections = 200
first_valid_uid = 1
default_login_user = {login_user}
default_internal_user = {internal_user}
default_internal_group = {internal_group}
mail_uid = {uid}
mail_gid = {gid}
mail_location = maildir:{folder}/mail/%u
mail_fsync = never
auth_failure_delay = 0
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={folder}/mail/%u
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = {tls_port}
  }}
}}
service anvil {{
  chroot =
}}
service stats {{
  chroot =
}}
namespace inbox {{
  inbox = yes
  separator = /
  mailbox Junk {{
    auto = no
    special_use = \\Junk
  }}
  mailbox Trash {{
    auto = no
    special_use = \\Trash
  }}
}}
"""


class Dovecot(Server):
    """Takes any user with ``PASSWORD``; an account begins empty, as a Maildir in ``mail``.

    Args:
        certificate: file with the key and the certificate of a server with TLS; None: it has none.
    """

    name = "dovecot"
    usual_port = 1143

    def __init__(self, folder: Path | None = None, *, certificate: Path | None = None) -> None:
        super().__init__(folder)
        self.certificate = certificate
        self.tls_port = self.another_port() if certificate else 0

    @classmethod
    def install(cls) -> Path:
        installed_by_apt("dovecot-imapd", PROGRAM)
        if not Path(PROGRAM).exists():
            raise Missing("Dovecot is missing: install it (Debian, Ubuntu: apt-get install dovecot-imapd)")
        return Path("/usr")

    def layout(self) -> None:
        for name in ("run", "state", "mail"):
            (self.folder / name).mkdir()
        is_root = os.geteuid() == 0
        me, group = ("nobody", "nogroup") if is_root else (str(os.getuid()), str(os.getgid()))
        if is_root:
            shutil.chown(self.folder / "mail", me, group)
        own = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        values = {
            "folder": self.folder, "port": self.port, "tls_port": self.tls_port, "password": PASSWORD,
            "ssl": "yes" if self.certificate else "no", "uid": me, "gid": group,
            "certificate": f"ssl_cert = <{self.certificate}\nssl_key = <{self.certificate}" if self.certificate else "",
            "login_user": "dovenull" if is_root else own,
            "internal_user": "dovecot" if is_root else own,
            "internal_group": "dovecot" if is_root else group,
        }  # fmt: skip
        (self.folder / "dovecot.conf").write_text(CONFIG.format(**values))

    def command(self) -> list[str]:
        return [PROGRAM, "-F", "-c", str(self.folder / "dovecot.conf")]

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 5) as asked:
            return asked.recv(4) == b"* OK"

    @property
    def url(self) -> str:
        return f"imap://127.0.0.1:{self.port}"
