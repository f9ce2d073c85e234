"""FTP, as pyftpdlib serves it: a folder of this machine."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.servers.cache import Missing
from tests.servers.server import Server

USER: Final = "ann"
PASSWORD: Final = "f1sh-und3r-1ce"


class Ftp(Server):
    """Serves ``files``, of which ``closed`` may not be entered."""

    name = "ftp"
    usual_port = 2121
    options: tuple[str, ...] = ()

    @classmethod
    def install(cls) -> Path:
        if find_spec("pyftpdlib") is None:
            raise Missing("pyftpdlib is not installed: make setup")
        return Path(sys.prefix)

    def layout(self) -> None:
        (self.files / "closed").mkdir(parents=True)  # its user may not enter it

    @property
    def files(self) -> Path:
        """What it serves, as its root."""
        return self.folder / "files"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.servers.ftp", str(self.port), str(self.files), *self.options]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(Path(__file__).parents[2])}

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), 5) as asked:
            return asked.recv(3) == b"220"

    @property
    def url(self) -> str:
        return f"ftp://127.0.0.1:{self.port}"

    @property
    def login(self) -> dict[str, str]:
        """The environment of a client."""
        return {"FTP_USER": USER, "FTP_PASSWORD": PASSWORD}


class OldFtp(Ftp):
    """Neither has MLSD nor renames over a file; closes a connection that was idle for two seconds."""

    name = "old-ftp"
    usual_port = 0
    options = ("--old",)


def main() -> None:
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.filesystems import AbstractedFS, FilesystemError
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import ThreadedFTPServer

    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("folder")
    parser.add_argument("--old", action="store_true")
    arguments = parser.parse_args()

    class KeepingFiles(AbstractedFS):  # type: ignore[misc]
        def rename(self, src: str, dst: str) -> None:
            if os.path.lexists(dst):
                raise FilesystemError("file exists")
            super().rename(src, dst)

    class Handler(FTPHandler):  # type: ignore[misc]
        pass

    authorizer = DummyAuthorizer()
    authorizer.add_user(USER, PASSWORD, arguments.folder, perm="elradfmwMT")
    authorizer.override_perm(USER, os.path.join(arguments.folder, "closed"), perm="", recursive=True)
    Handler.authorizer = authorizer
    if arguments.old:
        Handler.abstracted_fs = KeepingFiles
        Handler.timeout = 2
        Handler.proto_cmds = {k: v for k, v in FTPHandler.proto_cmds.items() if k not in ("MLSD", "MLST")}
    ThreadedFTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
