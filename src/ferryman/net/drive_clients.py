"""Clients of drives: fsspec's, with what they lack for reading and writing safely. ``net.drives`` opens them.

A listing is complete or raises. Errors are those of the operating system: ``FileNotFoundError`` if the server has said
that there is nothing of this name, ``PermissionError``, ``ConnectionError``, or another ``OSError``. A file is read up
to a limit without more of it being fetched. Beside fsspec's methods each client that writes has
those of ``DriveClient``.
"""

from __future__ import annotations

import asyncio
import errno
import ftplib
import io
import posixpath
import re
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final
from urllib.parse import quote

_RENAMES: Final = 5
"""How often a file is renamed where another one had to be removed before: a writer beside this one may put a file
there in between."""


class DriveClient:
    """Base of the clients; fsspec's class is the second base of the class that ``make`` makes.

    Paths are absolute in the file system.

    Attributes:
        parallel: calls that may be made at the same time.
    """

    parallel = 1

    @staticmethod
    def arguments(scheme: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of fsspec's class."""
        return options

    def upload(self, path: str, data: bytes) -> None:
        """Write a file, durably where the protocol can; its folder exists. A lost connection may leave a part of it."""
        raise NotImplementedError

    def replace(self, old: str, new: str) -> None:
        """Rename a file over another, in one step where the protocol and the server can."""
        raise NotImplementedError

    def replaces_at_once(self, old: str, new: str) -> bool:
        """Return whether it can, by renaming a file of ours over another one if need be."""
        return False

    def remove(self, path: str) -> None:
        """
        Raises:
            FileNotFoundError: it does not exist.
        """
        raise NotImplementedError

    def make_folder(self, path: str) -> None:
        """Make a folder whose parent exists; nothing happens if it exists."""
        raise NotImplementedError

    def remove_folder(self, path: str) -> None:
        """Remove a folder if it is empty.

        Raises:
            OSError: it is not empty.
        """
        raise NotImplementedError

    def disconnect(self) -> None:
        """End the connection."""

    def _must_be_file(self: Any, path: str) -> None:
        """Check that something is a file, before anything is removed for it: a rename whose answer was lost may have
        been done.

        Raises:
            OSError: it is not.
        """
        if self.info(path)["type"] != "file":
            raise IsADirectoryError(errno.EISDIR, "not a file", path)


# FTP


_LOST: Final = ("421", "425", "426")
"""Replies of a server that ends a connection, or cannot make one for the data."""
_UNIX_LINE: Final = re.compile(r"([-dlbcps])\S{9}\S*\s+\d+\s+\S+\s+\S+\s+(\d+)\s+\S+\s+\d+\s+[\d:]+ (.*)", re.DOTALL)
"""Line of ``LIST`` of a server without ``MLSD``: type, size, name. Its time has no year or no hour: it is left out."""
_TOTAL: Final = re.compile(r"total \d+\Z")


class Ftp(DriveClient):
    """FTP, over TLS with ``storage_options={"tls": True}``. One thread at a time uses its connection.

    Folders are listed from inside: servers take ``[`` and ``*`` in the argument of a listing for wildcards, and some
    list nothing, without an error, where there is no such folder.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._lock = threading.RLock()
        super().__init__(*args, **options)

    def _connect(self: Any) -> None:
        try:
            with self._translate_errors(""):
                super()._connect()  # type: ignore[misc]
        except FileNotFoundError as e:
            raise PermissionError(errno.EACCES, e.strerror) from e

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.strip("/")

    def ls(self: Any, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        with self._translate_errors(path):
            try:
                self.ftp.cwd(path)
            except ftplib.error_perm as e:
                raise self._missing_folder(path, str(e)) from None
            try:
                entries = [_mlsd_entry(name, facts) for name, facts in self.ftp.mlsd()]
            except ftplib.error_perm:
                lines: list[str] = []
                self.ftp.dir(lines.append)
                entries = [_list_entry(line, path) for line in lines if not _TOTAL.match(line)]
        found = [entry for entry in entries if entry and entry["name"] not in (".", "..")]
        for entry in found:
            entry["name"] = posixpath.join(path, entry["name"])
        return found if detail else [entry["name"] for entry in found]

    def _missing_folder(self: Any, path: str, reply: str) -> OSError:
        """Return the error for a folder that the server refuses: its replies do not tell missing ones from forbidden
        ones, but the folder above does."""
        if path == "/":
            return PermissionError(errno.EACCES, reply, path)
        kinds = {entry["name"]: entry["type"] for entry in self.ls(posixpath.dirname(path))}
        if path not in kinds:
            return FileNotFoundError(errno.ENOENT, reply, path)
        if kinds[path] == "directory":
            return PermissionError(errno.EACCES, reply, path)
        return NotADirectoryError(errno.ENOTDIR, reply, path)

    def info(self: Any, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path == "/":
            return {"name": "/", "size": 0, "type": "directory"}
        if (entry := self._info_of_one(path)) is not None:
            return dict(entry)
        for entry in self.ls(posixpath.dirname(path)):
            if entry["name"] == path:
                return dict(entry)
        raise FileNotFoundError(errno.ENOENT, "no such file", path)

    def _info_of_one(self: Any, path: str) -> dict[str, Any] | None:
        """Return what ``MLST`` says of a path; None: the server refuses, so that a listing has to tell why. A listing
        for each file of a folder would take time by the square of their number."""
        with self._translate_errors(path):
            try:
                lines = self.ftp.sendcmd(f"MLST {path}").split("\n")
            except ftplib.error_perm:
                return None
        facts = next((line.lstrip(" ").partition(" ")[0] for line in lines[1:] if line.startswith(" ")), "")
        pairs = (fact.partition("=") for fact in facts.split(";") if fact)
        found = {name.lower(): value for name, _, value in pairs}
        if "type" not in found:
            return None
        return _mlsd_entry(path, found) or {"name": path, "size": 0, "type": "directory"}

    def cat_file(self: Any, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with self._reading(path, start or 0) as connection:
            return _read_up_to(connection.recv, None if end is None else end - (start or 0))

    def _open(self: Any, path: str, mode: str = "rb", **_: Any) -> io.IOBase:
        return _Blocks(lambda start, end: self.cat_file(path, start, end))

    @contextmanager
    def _reading(self: Any, path: str, start: int) -> Iterator[Any]:
        """Yield the data connection of a file; one that is not read to its end costs the connection."""
        with self._translate_errors(path):
            self.ftp.voidcmd("TYPE I")
            with self.ftp.transfercmd(f"RETR {path}", start or None) as connection:
                yield connection
                whole = not connection.recv(1)
            if whole:
                self.ftp.voidresp()
            else:
                self.ftp.close()
                self._connect()

    def upload(self: Any, path: str, data: bytes) -> None:
        with self._translate_errors(path):
            self.ftp.storbinary(f"STOR {path}", io.BytesIO(data), blocksize=2**18)

    def replace(self: Any, old: str, new: str) -> None:
        with self._translate_errors(new):
            try:
                self.ftp.rename(old, new)
            except ftplib.error_perm:  # some servers do not rename over a file
                self._must_be_file(old)
                for attempt in range(1, _RENAMES + 1):
                    with suppress(ftplib.error_perm):
                        self.ftp.delete(new)
                    try:
                        self.ftp.rename(old, new)
                        return
                    except ftplib.error_perm:
                        if attempt == _RENAMES:
                            raise

    def replaces_at_once(self: Any, old: str, new: str) -> bool:
        with self._translate_errors(new):
            try:
                self.ftp.rename(old, new)
            except ftplib.error_perm:
                return False
            return True

    def remove(self: Any, path: str) -> None:
        with self._translate_errors(path):
            self.ftp.delete(path)

    def make_folder(self: Any, path: str) -> None:
        with self._translate_errors(path):
            try:
                self.ftp.mkd(path)
            except ftplib.error_perm as e:
                try:
                    self.ftp.cwd(path)
                except ftplib.error_perm:
                    raise PermissionError(errno.EACCES, str(e), path) from None

    def remove_folder(self: Any, path: str) -> None:
        with self._translate_errors(path):
            self.ftp.rmd(path)

    def disconnect(self: Any) -> None:
        self.ftp.close()

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        """Hold the connection, and raise errors of FTP as those of the operating system."""
        with self._lock:
            try:
                yield
            except EOFError as e:
                raise ConnectionAbortedError(errno.ECONNABORTED, "the server closed the connection", path) from e
            except ftplib.Error as e:
                raise _ftp_error(str(e), path) from e


def _ftp_error(reply: str, path: str) -> OSError:
    """Return the error that a reply stands for (RFC 959)."""
    code = reply[:3]
    if code in _LOST:
        return ConnectionAbortedError(errno.ECONNABORTED, reply, path)
    if code in ("452", "552"):
        return OSError(errno.ENOSPC, reply, path)
    if code in ("530", "532", "553"):
        return PermissionError(errno.EACCES, reply, path)
    if code == "550":
        denied = re.search("denied|permission|privilege|not allowed|read-only", reply, re.IGNORECASE)
        return PermissionError(errno.EACCES, reply, path) if denied else FileNotFoundError(errno.ENOENT, reply, path)
    return OSError(errno.EAGAIN if code.startswith("4") else errno.EPROTO, reply, path)


_FTP_TYPES: Final = {"file": "file", "dir": "directory"}
_FTP_SELF: Final = ("cdir", "pdir")


def _mlsd_entry(name: str, facts: dict[str, str]) -> dict[str, Any] | None:
    """Return an entry of ``MLSD`` (RFC 3659); None for the folder itself and the one above."""
    kind = facts.get("type", "").lower()
    if kind in _FTP_SELF:
        return None
    entry: dict[str, Any] = {
        "name": name,
        "type": _FTP_TYPES.get(kind, "link" if "link" in kind else kind or "unknown"),
    }
    entry |= {"size": int(facts.get("size") or 0)}
    with suppress(ValueError):
        entry["mtime"] = datetime.strptime(facts.get("modify", "")[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return entry


def _list_entry(line: str, path: str) -> dict[str, Any]:
    """Return an entry of a line of ``LIST``.

    Raises:
        OSError: the server's lines are of another form.
    """
    found = _UNIX_LINE.match(line)
    if found is None:
        raise OSError(errno.EPROTO, f"a server without MLSD, whose listing has a line of unknown form: {line!r}", path)
    kind = {"-": "file", "d": "directory", "l": "link"}.get(found[1], "unknown")
    name = found[3].partition(" -> ")[0] if kind == "link" else found[3]
    return {"name": name, "type": kind, "size": int(found[2])}


def _read_up_to(receive: Callable[[int], bytes], count: int | None) -> bytes:
    parts, left = [], count
    while (left is None or left > 0) and (data := receive(2**16 if left is None else min(2**16, left))):
        parts.append(data)
        left = None if left is None else left - len(data)
    return b"".join(parts)


_BLOCK_BYTES: Final = 4 * 2**20


class _Blocks(io.RawIOBase):
    """File that is read in blocks, each by a request of its own.

    Args:
        fetch: returns the bytes from a position up to another one; fewer at the end of the file.
    """

    def __init__(self, fetch: Callable[[int, int], bytes]) -> None:
        self._fetch = fetch
        self._block = memoryview(b"")
        self._position = 0
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._block and not self._ended:
            block = self._fetch(self._position, self._position + _BLOCK_BYTES)
            self._ended = len(block) < _BLOCK_BYTES
            self._position += len(block)
            self._block = memoryview(block)
        count = min(len(buffer), len(self._block))
        buffer[:count] = self._block[:count]
        self._block = self._block[count:]
        return count


# SFTP


class Sftp(DriveClient):
    """SFTP. Host keys are checked against ``~/.ssh/known_hosts``, which fsspec's client leaves out."""

    parallel = 8

    @staticmethod
    def arguments(scheme: str, options: dict[str, Any]) -> dict[str, Any]:
        quick = {"connect_timeout": 15, "login_timeout": 30, "keepalive_interval": 10, "keepalive_count_max": 3}
        names = {"path_encoding": "utf-8", "path_errors": "surrogateescape"}  # of any bytes
        return {"known_hosts": (), "sftp_client_kwargs": names, **quick, **options}

    async def _connect(self: Any, *args: Any, **options: Any) -> Any:
        import asyncssh

        try:
            return await super()._connect(*args, **options)  # type: ignore[misc]
        except asyncssh.HostKeyNotVerifiable as e:
            why = f"{e.reason}: add the server's key to ~/.ssh/known_hosts, after a look at it (ssh-keyscan HOST)"
            raise PermissionError(errno.EACCES, why) from e
        except PermissionError as e:
            raise PermissionError(errno.EACCES, str(e)) from e

    @property
    def connect(self: Any) -> Callable[..., Any]:
        from fsspec.asyn import sync

        return lambda *args, **options: sync(self.loop, self._connect, *args, **{**options, "timeout": None})

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.rstrip("/") or "/"

    async def _cat_file(self: Any, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        async def read(channel: Any) -> bytes:
            async with channel.open(path, "rb") as file:
                data: bytes = await file.read(-1 if end is None else end - (start or 0), start or 0)
                return data

        return bytes(await self._on_channel(path, read))

    async def _ls(self: Any, path: str, detail: bool = True, **_: Any) -> list[Any]:
        entries = await self._on_channel(path, lambda channel: channel.readdir(path))
        found = []
        for each in entries:
            if each.filename not in ("", ".", ".."):
                found.append({**self._decode_attributes(each.attrs), "name": posixpath.join(path, each.filename)})
        return found if detail else [info["name"] for info in found]

    async def _info(self: Any, path: str, **_: Any) -> dict[str, Any]:
        attributes = await self._on_channel(path, lambda channel: channel.stat(path))
        return {**self._decode_attributes(attributes), "name": path}

    def _open(self: Any, path: str, mode: str = "rb", **_: Any) -> io.IOBase:
        return _Blocks(lambda start, end: self.cat_file(path, start=start, end=end))

    def upload(self: Any, path: str, data: bytes) -> None:
        async def write(channel: Any) -> None:
            import asyncssh

            async with channel.open(path, "wb") as file:
                await file.write(data)
                with suppress(asyncssh.SFTPOpUnsupported):
                    await file.fsync()

        self._run(path, write)

    def replace(self: Any, old: str, new: str) -> None:
        async def rename(channel: Any) -> None:
            import asyncssh

            try:
                await channel.posix_rename(old, new)
            except asyncssh.SFTPOpUnsupported:  # plain renames do not overwrite
                await channel.stat(old)  # nothing is removed for a file that is not there
                for attempt in range(1, _RENAMES + 1):
                    with suppress(asyncssh.SFTPNoSuchFile):
                        await channel.remove(new)
                    try:
                        await channel.rename(old, new)
                        return
                    except (asyncssh.SFTPFailure, asyncssh.SFTPFileAlreadyExists):
                        if attempt == _RENAMES:
                            raise

        self._run(new, rename)

    def replaces_at_once(self: Any, old: str, new: str) -> bool:
        async def rename(channel: Any) -> bool:
            import asyncssh

            try:
                await channel.posix_rename(old, new)
            except asyncssh.SFTPOpUnsupported:
                return False
            return True

        return bool(self._run(new, rename))

    def remove(self: Any, path: str) -> None:
        self._run(path, lambda channel: channel.remove(path))

    def make_folder(self: Any, path: str) -> None:
        async def make_one(channel: Any) -> None:
            if not await channel.isdir(path):
                await channel.mkdir(path)

        self._run(path, make_one)

    def remove_folder(self: Any, path: str) -> None:
        self._run(path, lambda channel: channel.rmdir(path))

    def disconnect(self: Any) -> None:
        self._finalize(self.loop, self._pool, self._stack)

    def _run(self: Any, path: str, work: Callable[[Any], Any]) -> Any:
        from fsspec.asyn import sync

        return sync(self.loop, self._on_channel, path, work)

    async def _on_channel(self: Any, path: str, work: Callable[[Any], Any]) -> Any:
        """Run an operation on a channel, and raise errors of SFTP as those of the operating system."""
        import asyncssh

        try:
            async with self._pool.get() as channel:
                return await work(channel)
        except asyncssh.Error as e:
            kinds: Sequence[tuple[tuple[type, ...], int]] = (
                ((asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath), errno.ENOENT),
                ((asyncssh.SFTPPermissionDenied, asyncssh.SFTPWriteProtect), errno.EACCES),
                ((asyncssh.SFTPNoSpaceOnFilesystem, asyncssh.SFTPQuotaExceeded), errno.ENOSPC),
                ((asyncssh.SFTPDirNotEmpty,), errno.ENOTEMPTY),
                (
                    (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection, asyncssh.DisconnectError),
                    errno.ECONNABORTED,
                ),
                ((asyncssh.ChannelOpenError, asyncssh.SFTPEOFError), errno.ECONNABORTED),
            )
            code = next((code for classes, code in kinds if isinstance(e, classes)), errno.EPROTO)
            raise OSError(code, getattr(e, "reason", "") or type(e).__name__, path) from e
        except (asyncio.IncompleteReadError, BrokenPipeError) as e:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the connection was lost", path) from e


# SMB


class Smb(DriveClient):
    """SMB 2 and 3. A folder is listed with sizes and times, not by one request a file as fsspec does."""

    def _connect(self: Any) -> None:
        import smbclient

        # Connections of its own: smbclient's are shared in a process, and made anew without a login if they break.
        self._session = {"username": self.username, "password": self.password, "encrypt": self.encrypt}
        self._session |= {"port": self._port, "connection_timeout": self.timeout, "connection_cache": {}}
        with self._translate_errors(""):
            smbclient.register_session(self.host, **self._session)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def ls(self: Any, path: str, detail: bool = True, **_: Any) -> list[Any]:
        import smbclient

        with self._translate_errors(path):
            entries = list(smbclient.scandir(self._unc(path), **self._session))
        found = [_smb_entry(posixpath.join(path, entry.name), entry.smb_info) for entry in entries]
        return found if detail else [info["name"] for info in found]

    def info(self: Any, path: str, **_: Any) -> dict[str, Any]:
        import smbclient

        with self._translate_errors(path):
            found = smbclient.stat(self._unc(path), **self._session)
        kind = "directory" if stat.S_ISDIR(found.st_mode) else "link" if stat.S_ISLNK(found.st_mode) else "file"
        return {"name": path, "type": kind, "size": found.st_size, "mtime": found.st_mtime}

    def cat_file(self: Any, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with self._translate_errors(path), self._file(path, "rb") as file:
            file.seek(start or 0)
            return _read_up_to(file.read, None if end is None else end - (start or 0))

    def _open(self: Any, path: str, mode: str = "rb", **_: Any) -> io.IOBase:
        return _Blocks(lambda start, end: self.cat_file(path, start, end))

    def upload(self: Any, path: str, data: bytes) -> None:
        with self._translate_errors(path), self._file(path, "wb") as file:
            file.write(data)
            file.flush()

    def replace(self: Any, old: str, new: str) -> None:
        import smbclient

        with self._translate_errors(new):
            smbclient.replace(self._unc(old), self._unc(new), **self._session)

    def replaces_at_once(self: Any, old: str, new: str) -> bool:
        self.replace(old, new)
        return True

    def remove(self: Any, path: str) -> None:
        import smbclient

        with self._translate_errors(path):
            smbclient.remove(self._unc(path), **self._session)

    def make_folder(self: Any, path: str) -> None:
        import smbclient

        if path.strip("/").count("/"):  # the first name is the share's
            with suppress(FileExistsError), self._translate_errors(path):
                smbclient.mkdir(self._unc(path), **self._session)

    def remove_folder(self: Any, path: str) -> None:
        import smbclient

        with self._translate_errors(path):
            smbclient.rmdir(self._unc(path), **self._session)

    def disconnect(self: Any) -> None:
        import smbclient

        smbclient.reset_connection_cache(fail_on_error=False, connection_cache=self._session["connection_cache"])

    def _file(self: Any, path: str, mode: str) -> AbstractContextManager[Any]:
        import smbclient

        file: AbstractContextManager[Any] = smbclient.open_file(
            self._unc(path), mode, buffering=0 if mode == "rb" else -1, share_access="rwd", **self._session
        )
        return file

    def _unc(self: Any, path: str) -> str:
        return f"\\\\{self.host}" + path.replace("/", "\\")

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        """Raise errors of SMB as those of the operating system."""
        from smbprotocol import exceptions as smb

        try:
            yield
        except smb.SMBConnectionClosed as e:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the server closed the connection", path) from e
        except smb.SMBOSError as e:  # its class does not tell which error it is
            raise OSError(e.errno or errno.EPROTO, e.strerror, path) from e
        except (smb.LogonFailure, smb.SMBAuthenticationError, smb.AccessDenied) as e:
            raise PermissionError(errno.EACCES, str(e).partition("\n")[0], path) from e
        except ValueError as e:
            if "Failed to connect" not in str(e):
                raise
            raise ConnectionRefusedError(errno.ECONNREFUSED, str(e), path) from e


_SMB_FOLDER: Final = 0x10
_SMB_LINK: Final = 0x400
"""Bits of a file's attributes."""


def _smb_entry(path: str, found: Any) -> dict[str, Any]:
    kind = (
        "link" if found.file_attributes & _SMB_LINK else "directory" if found.file_attributes & _SMB_FOLDER else "file"
    )
    return {"name": path, "type": kind, "size": found.end_of_file, "mtime": found.last_write_time}


# WebDAV


class WebDav(DriveClient):
    """WebDAV, for reading: ``webdav://`` over HTTP, ``webdavs://`` over HTTPS."""

    @staticmethod
    def arguments(scheme: str, options: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in options.items() if name not in ("host", "port", "username", "password")}
        host = f"[{options['host']}]" if ":" in options["host"] else options["host"]
        port = f":{options['port']}" if "port" in options else ""
        if "username" in options:
            kept["auth"] = options["username"], options.get("password", "")
        return {"base_url": f"{'https' if scheme == 'webdavs' else 'http'}://{host}{port}", "timeout": 30, **kept}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def ls(self: Any, path: str, detail: bool = True, **_: Any) -> list[Any]:
        quoted = quote(path, errors="surrogateescape")
        with self._translate_errors(path):
            members = self.client.propfind(quoted, headers={"Depth": "1"}, follow_redirects=True).responses
        here = members.pop(self.client.join_url(quoted).path, None)
        if here is None:
            raise OSError(errno.EPROTO, "the server lists something other than this folder", path)
        if here.properties.resource_type == "file":
            raise OSError(errno.ENOTDIR, "not a folder", path)
        for member in (here, *members.values()):
            if member.status_code is not None and member.status_code >= 400:  # 507 of the folder: it has more
                raise OSError(
                    errno.EPROTO, f"the server lists a part of it, and {member.status_code} for the rest", path
                )
            if member.properties.resource_type is None:
                raise OSError(errno.EPROTO, "the server lists a member without saying what it is", member.path)
        found = [self._entry(member) for member in members.values()]
        return found if detail else [info["name"] for info in found]

    def _entry(self: Any, member: Any) -> dict[str, Any]:
        entry = {name: getattr(member.properties, name) for name in ("content_length", "modified", "etag")}
        kind = member.properties.resource_type
        return _webdav_entry({**entry, "name": member.path_relative_to(self.client.base_url), "type": kind})

    def info(self: Any, path: str, **_: Any) -> dict[str, Any]:
        with self._translate_errors(path):
            return {**_webdav_entry(self.client.info(quote(path, errors="surrogateescape"))), "name": path}

    def cat_file(self: Any, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        count = None if end is None else end - (start or 0)
        headers = {"Range": f"bytes={start or 0}-{'' if end is None else end - 1}"} if start or end is not None else {}
        with self._translate_errors(path), self._request("GET", path, headers) as answer:
            if answer.status_code == 416:  # it ends before the range does
                return b""
            answer.raise_for_status()
            chunks = answer.iter_bytes(2**16)
            if start and answer.status_code == 200:
                raise OSError(
                    errno.EPROTO, "the server ignores Range, so that large files cannot be read in parts", path
                )
            parts, size = [], 0
            for chunk in chunks:
                parts.append(chunk)
                size += len(chunk)
                if count is not None and size >= count:
                    break
            return b"".join(parts)[:count]

    def _open(self: Any, path: str, mode: str = "rb", **_: Any) -> io.IOBase:
        return _Blocks(lambda start, end: self.cat_file(path, start, end))

    def _request(self: Any, method: str, path: str, headers: dict[str, str]) -> AbstractContextManager[Any]:
        url = self.client.join_url(quote(path, errors="surrogateescape"))
        return self.client.http.stream(method, url, headers=headers, follow_redirects=True)  # type: ignore[no-any-return]

    def disconnect(self: Any) -> None:
        self.client.http.close()

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        """Raise errors of WebDAV as those of the operating system."""
        import httpx
        from webdav4.client import ClientError, HTTPError, ResourceNotFound

        try:
            yield
        except ResourceNotFound as e:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", path) from e
        except (HTTPError, httpx.HTTPStatusError) as e:
            status = e.response.status_code if isinstance(e, httpx.HTTPStatusError) else e.status_code
            raise _http_error(status, path) from e
        except httpx.TransportError as e:
            raise ConnectionAbortedError(errno.ECONNABORTED, str(e) or type(e).__name__, path) from e
        except ClientError as e:
            raise OSError(errno.EPROTO, str(e), path) from e


def _http_error(status: int, path: str) -> OSError:
    text = f"the server answers with HTTP status {status}"
    if status in (401, 403):
        return PermissionError(errno.EACCES, text, path)
    if status in (404, 410):
        return FileNotFoundError(errno.ENOENT, text, path)
    if status in (429, 502, 503, 504):
        return ConnectionAbortedError(errno.ECONNABORTED, text, path)
    return OSError(errno.ENOSPC if status == 507 else errno.EAGAIN if status >= 500 else errno.EPROTO, text, path)


def _webdav_entry(entry: dict[str, Any]) -> dict[str, Any]:
    found = {"name": "/" + entry["name"].strip("/"), "type": entry["type"], "size": entry["content_length"] or 0}
    return found | {"mtime": entry["modified"], "ETag": entry["etag"] or ""}


# HDFS


class WebHdfs(DriveClient):
    """HDFS over HTTP. A rename does not overwrite, so the older file is removed before."""

    parallel = 4

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path or "/"

    def ls(self: Any, path: str, detail: bool = True, **_: Any) -> list[Any]:
        with self._translate_errors(path):
            found = [_hdfs_entry(info) for info in super().ls(path, detail=True)]  # type: ignore[misc]
        return found if detail else [info["name"] for info in found]

    def info(self: Any, path: str, **_: Any) -> dict[str, Any]:
        with self._translate_errors(path):
            return _hdfs_entry(super().info(path))  # type: ignore[misc]

    def cat_file(self: Any, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        length = {} if end is None else {"length": end - (start or 0)}
        with self._translate_errors(path):
            if self.info(path)["size"] <= (start or 0):
                return b""
            content: bytes = self._call("OPEN", path=path, offset=start or 0, **length).content
            return content

    def _open(self: Any, path: str, mode: str = "rb", **_: Any) -> io.IOBase:
        return _Blocks(lambda start, end: self.cat_file(path, start, end))

    def upload(self: Any, path: str, data: bytes) -> None:
        with self._translate_errors(path):
            asked = self._call("CREATE", method="put", path=path, redirect=False, overwrite="true")
            sent = self.session.put(self._apply_proxy(asked.headers["Location"]), data=data, timeout=_HDFS_TIMEOUT_S)
            sent.raise_for_status()

    def replace(self: Any, old: str, new: str) -> None:
        with self._translate_errors(new):
            if not self._done("RENAME", "put", old, destination=new):
                self._must_be_file(old)
                self._must_be_file(new)
                for _ in range(_RENAMES):
                    self._done("DELETE", "delete", new)
                    if self._done("RENAME", "put", old, destination=new):
                        return
                raise FileNotFoundError(errno.ENOENT, f"could not be renamed to {new}", old)

    def remove(self: Any, path: str) -> None:
        with self._translate_errors(path):
            if not self._done("DELETE", "delete", path):
                raise FileNotFoundError(errno.ENOENT, "no such file", path)

    def make_folder(self: Any, path: str) -> None:
        with self._translate_errors(path):
            self._done("MKDIRS", "put", path)

    def remove_folder(self: Any, path: str) -> None:
        with self._translate_errors(path):
            self._done("DELETE", "delete", path, recursive="false")

    def _done(self: Any, operation: str, method: str, path: str, **options: str) -> bool:
        """Call an operation whose answer says whether anything was done, which fsspec does not look at."""
        return bool(self._call(operation, method=method, path=path, **options).json()["boolean"])

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        """Raise errors of requests as those of the operating system."""
        import requests

        try:
            yield
        except (requests.ConnectionError, requests.Timeout) as e:
            raise ConnectionAbortedError(errno.ECONNABORTED, type(e).__name__, path) from e
        except requests.HTTPError as e:
            raise _http_error(e.response.status_code if e.response is not None else 500, path) from e
        except (RuntimeError, ValueError) as e:
            raise OSError(errno.EPROTO, str(e), path) from e


_HDFS_TIMEOUT_S: Final = 60


def _hdfs_entry(info: dict[str, Any]) -> dict[str, Any]:
    kind = "link" if info["type"] == "symlink" else info["type"]
    modified = info["modificationTime"] / 1000
    return {"name": info["name"].rstrip("/"), "type": kind, "size": info["size"], "mtime": modified}


# All of them.

_CLIENTS: Final[dict[str, tuple[type[DriveClient], str]]] = {
    "Ftp": (Ftp, "fsspec.implementations.ftp:FTPFileSystem"),
    "Sftp": (Sftp, "sshfs:SSHFileSystem"),
    "Smb": (Smb, "fsspec.implementations.smb:SMBFileSystem"),
    "WebDav": (WebDav, "webdav4.fsspec:WebdavFileSystem"),
    "WebHdfs": (WebHdfs, "fsspec.implementations.webhdfs:WebHDFS"),
}
"""Name -> client, and the class of fsspec that it extends, which is imported when the first one is made."""

_made: dict[str, type] = {}


def make(name: str, scheme: str, options: dict[str, Any]) -> Any:
    """Return a new client.

    Raises:
        OSError: there is no connection, or the login is refused (``PermissionError``).
    """
    client, base = _CLIENTS[name]
    if name not in _made:
        module, _, base_name = base.partition(":")
        _made[name] = type(name, (client, getattr(import_module(module), base_name)), {})
    return _made[name](**client.arguments(scheme, options), skip_instance_cache=True)
