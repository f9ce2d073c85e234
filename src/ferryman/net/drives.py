"""Drives: file systems of other machines by URL, through fsspec. Sources read them, and destinations write to them.

A ``Drive`` is one URL: it opens the file system in each process when it is first needed, and again when its connection
was lost; it knows which package a scheme needs, where logins come from, and what of a URL or an error may be shown.

**Logins** of ftp, sftp, smb and webdav are looked for in this order: ``storage_options``, the URL, the entry of the
host in ``~/.netrc`` (or the file that ``NETRC`` names), the variables ``FTP_USER`` and ``FTP_PASSWORD`` (``SFTP_…``,
``SMB_…``, ``WEBDAV_…``). SSH also uses its own keys, agent and configuration.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeVar
from urllib.parse import unquote, urlsplit

from ferryman import limits
from ferryman.errors import UsageError, hide_secrets, plain_text, shortened
from ferryman.net.faults import is_connection_error

_R = TypeVar("_R")

_SECRET: Final = re.compile(r"secret|token|pass|key|cred|sas|sign|auth|conn", re.IGNORECASE)
_USER: Final = re.compile(r"(?<=://)[^/@]*@")
_QUERY: Final = re.compile(r"\?[^:]*")  # a signed URL's signature
_SHORTEST_SECRET: Final = 4  # characters; removing shorter values would garble the text


class Protocol(NamedTuple):
    """Protocol of drives for which Ferryman has a client of its own, in ``net.drive_clients``.

    Attributes:
        client: name of the class there.
        package: what it imports beside fsspec; "" for nothing.
        extra: extra of Ferryman that installs it.
        variables: beginning of the names of the variables with its login; "" if it has no login by password.
        options: options of every client.
        writes: whether destinations can write to it. WebDAV servers differ in which names they take, and some cut one
            at a ``;`` when they rename.
    """

    client: str
    package: str
    extra: str
    variables: str
    options: Mapping[str, Any] = {}
    writes: bool = True


_WEBDAV: Final = Protocol("WebDav", "webdav4", "webdav", "WEBDAV", writes=False)
PROTOCOLS: Final[dict[str, Protocol]] = {
    "ftp": Protocol("Ftp", "fsspec", "fsspec", "FTP", {"timeout": 30}),
    "sftp": Protocol("Sftp", "sshfs", "sftp", "SFTP"),
    "smb": Protocol("Smb", "smbprotocol", "smb", "SMB", {"timeout": 30, "register_session_retries": 0}),
    "webdav": _WEBDAV,
    "webdavs": _WEBDAV,
    "webhdfs": Protocol("WebHdfs", "requests", "hdfs", ""),
}
"""Scheme -> protocol."""


class ChangeEvidence(NamedTuple):
    """Evidence of changes that a file system gives, and how far it is believed.

    Attributes:
        etags: whether an etag or a checksum is made of the content. Else it is made of a time, and believed like one.
        age_s: age from which a time is believed (seconds).
    """

    etags: bool
    age_s: float


_STORE: Final = ChangeEvidence(True, limits.FINGERPRINT_TRUST_S)
_DRIVE: Final = ChangeEvidence(False, limits.DRIVE_TRUST_S)


def changes_of(url: str) -> ChangeEvidence:
    """Return how far the file system of a URL is believed."""
    return _DRIVE if protocol_of(url) else _STORE


def protocol_of(url: str) -> Protocol | None:
    """Return the protocol of a URL that names a folder of a drive; None if fsspec's own client is used."""
    return None if "::" in url else PROTOCOLS.get(url.partition("://")[0].lower())


def shown(url: str) -> str:
    """Return a URL without login, and with ``?…`` in place of a query."""
    return _QUERY.sub("?…", _USER.sub("…@", url))


def without_login(url: str) -> str:
    """Return a URL without login and query."""
    return _USER.sub("", url).partition("?")[0]


def check_url(url: str) -> None:
    """
    Raises:
        ValueError: the URL of a drive says no host, or an impossible port.
    """
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"{shown(url)} names no host: give {parts.scheme}://HOST/FOLDER")
    _ = parts.port


_opening: Final = threading.Lock()


class Drive:
    """File system behind a URL, and the folder in it that the URL names. It is pickled to workers without connections.

    Args:
        url: as fsspec takes it.
        options: for fsspec; never shown.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.url = url
        self._options = dict(options or {})
        self._opened: tuple[int, Any, str] | None = None
        self._password = ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # connections cannot be pickled

    @property
    def where(self) -> str:
        """Return the URL without secrets."""
        return shown(self.url)

    def not_installed(self) -> str:
        """Return which package is missing, with the command that installs it; "" if none is. Opens nothing."""
        if find_spec("fsspec") is None:
            return f"{self.where} needs fsspec, not installed here: pip install 'ferryman[fsspec]'"
        if protocol := protocol_of(self.url):
            if find_spec(protocol.package) is None:
                install = f"pip install 'ferryman[{protocol.extra}]'"
                return f"{self.where} needs {protocol.package}, not installed here: {install}"
            return ""
        from fsspec.registry import known_implementations

        for part in self.url.split("::"):
            scheme = part.partition("://")[0]
            name = known_implementations.get(scheme.lower(), {}).get("class", "fsspec").partition(".")[0]
            if find_spec(name) is None:
                what = "'ferryman[s3]'" if name == "s3fs" else name
                return f"{self.where} needs {name}, not installed here: pip install {what}"
        return ""

    def open(self) -> tuple[Any, str]:
        """Return the file system, opened once in each process, and the folder's path in it, without a slash at its end.

        Raises:
            UsageError: fsspec, or a package it needs for this URL, is not installed; the URL or an option is unknown.
        """
        with _opening:  # threads that write share a connection
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = os.getpid(), *self._open()
            return self._opened[1:]

    def _open(self) -> tuple[Any, str]:
        import zipfile

        try:
            import fsspec
        except ImportError:
            raise UsageError(f"{self.where}: URLs need fsspec: pip install 'ferryman[fsspec]'.") from None
        try:
            if protocol := protocol_of(self.url):
                if missing := self.not_installed():
                    raise UsageError(f"{missing}.")
                fs, root = self._open_client(protocol)
            else:
                # Connections are shared in a process, because they take long to open; but listings must not be cached,
                # nor an archive, which may have been replaced since it was opened.
                cache = {"use_listings_cache": False, "skip_instance_cache": "::" in self.url}
                fs, root = fsspec.url_to_fs(self.url, **cache, **self._options)
        except ImportError as e:
            how = ": pip install 'ferryman[s3]'" if "s3fs" in str(e) else ""
            raise UsageError(f"{self.where}: {self.error_text(e)}{how}.") from None
        except (ValueError, TypeError, FileNotFoundError, zipfile.BadZipFile) as e:
            raise UsageError(f"{self.where}: cannot be opened: {self.error_text(e)}.") from None
        return fs, root.rstrip("/")

    def path(self, name: str) -> str:
        """Return the path in the file system of a name relative to the folder."""
        root = self.open()[1]
        if protocol_of(self.url):  # its paths are absolute, also those below its root
            return f"{root}/{name}" if name else root or "/"
        return f"{root}/{name}" if root and name else root + name

    def call(self, work: Callable[[Any], _R]) -> _R:
        """Return ``work(file system)``. It is called again, over a new connection, if a connection that was opened
        earlier was lost: servers end those that were idle. So it must be something that may be repeated."""
        reused = self._opened is not None and self._opened[0] == os.getpid()
        while True:
            try:
                return work(self.open()[0])
            except Exception as e:
                if protocol_of(self.url) is None or not is_connection_error(e):
                    raise
                self.close()
                if not reused:
                    raise
                reused = False

    def close(self) -> None:
        """Forget the connection, so that the next call opens another one."""
        opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid() and hasattr(opened[1], "disconnect"):
            with suppress(Exception):  # it is broken
                opened[1].disconnect()

    def error_text(self, error: BaseException) -> str:
        """Return an error's text on one line, without secrets."""
        secrets = [*_secrets(self._options), self._password, *_USER.findall(self.url)]
        # before it is shortened, which might leave a part of a secret
        text = hide_secrets(plain_text(error, sys.maxsize), secrets)
        text = " ".join(text.split()) or type(error).__name__
        return shortened(_QUERY.sub("?…", text) if "://" in text else text, limits.MESSAGE_CHARACTERS)

    # --- clients of our own -------------------------------------------------------------------------------------------

    def _open_client(self, protocol: Protocol) -> tuple[Any, str]:
        from ferryman.net import drive_clients

        parts = urlsplit(self.url.replace("?", "%3F").replace("#", "%23"))  # both are characters of names here
        check_url(self.url)
        options: dict[str, Any] = {**protocol.options, **self._options}
        if protocol.variables:
            user, password = self._login(protocol, parts.hostname or "", parts.username, parts.password)
            self._password = password if len(password) >= _SHORTEST_SECRET else ""
            options |= {"username": user} if user else {}
            options |= {"password": password} if password else {}
        elif parts.username:
            options.setdefault("user", unquote(parts.username))
        options["host"] = parts.hostname
        if parts.port:
            options["port"] = parts.port
        return drive_clients.make(protocol.client, parts.scheme.lower(), options), unquote(parts.path)

    def _login(self, protocol: Protocol, host: str, user: str | None, password: str | None) -> tuple[str, str]:
        """Return user and password, "" for those that are not to be found."""
        user = str(self._options.get("username") or unquote(user or ""))
        password = str(self._options.get("password") or unquote(password or ""))
        if not password and (found := _netrc_entry(host)) and user in ("", found[0]):
            user, password = found
        if not password and user in ("", os.environ.get(f"{protocol.variables}_USER", user)):
            user = user or os.environ.get(f"{protocol.variables}_USER", "")
            password = os.environ.get(f"{protocol.variables}_PASSWORD", "")
        return user, password


def _netrc_entry(host: str) -> tuple[str, str] | None:
    """Return login and password of a host; None if the file is missing or has none.

    Raises:
        UsageError: the file cannot be read, or is damaged.
    """
    import netrc

    path = os.environ.get("NETRC") or str(Path("~/.netrc").expanduser())
    try:
        entry = netrc.netrc(path).hosts.get(host)
    except FileNotFoundError:
        return None
    except (OSError, netrc.NetrcParseError) as e:
        _refuse_netrc(path, e)
    return None if entry is None else (entry[0] or "", entry[2] or "")


def _refuse_netrc(path: str, error: Exception) -> NoReturn:
    why = error.strerror if isinstance(error, OSError) else "it is damaged, or others may read it"
    raise UsageError(f"{path}: {why}. Correct it: one line `machine HOST login USER password …` a host, chmod 600.")


def _secrets(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values, at any depth, of options whose names suggest secrets."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _secrets(value)
        elif isinstance(value, str) and len(value) >= _SHORTEST_SECRET and _SECRET.search(str(name)):
            yield value
