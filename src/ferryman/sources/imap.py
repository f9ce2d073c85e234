"""The mails of an account on an IMAP server, which are only looked at: EXAMINE and BODY.PEEK."""

from __future__ import annotations

import imaplib
import ipaddress
import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, get_args

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import Misconfigured, TransientError, Unavailable, UsageError, plain_text
from ferryman.net.http import expand_variables, variable_names
from ferryman.net.mailboxes import HEADER_BYTES, mail_id, names_a_mail
from ferryman.net.relative_paths import absolute
from ferryman.sources.base import Bookmark, Detect, Fetched, Listed, Note, Source, Unchanged
from ferryman.sources.mail import (
    KnownMail,
    MailFolder,
    MailLocation,
    changed_bookmarks,
    check_patterns,
    is_selected,
    list_mails,
    load_folders,
    mail_document,
    marked,
    raise_if_empty,
    unless_known,
)

if TYPE_CHECKING:
    from imapclient import IMAPClient

Security = Literal["tls", "starttls", "none"]
_T = TypeVar("_T")

SEARCHED_UIDS: Final = 50_000
"""UIDs of one range that are searched for at once: an answer is one line, and Python's library reads 1 MB of one."""

FETCHED_MAILS: Final = 200
"""Mails whose headers are fetched at once."""

_ROUNDS: Final = 6
"""Times that folders are looked at until none changes any more."""

_NOT_SELECTABLE: Final = frozenset({"\\noselect", "\\nonexistent"})
_HEADER: Final = f"BODY.PEEK[HEADER]<0.{HEADER_BYTES}>"
_BEGINNING: Final = f"BODY.PEEK[]<0.{HEADER_BYTES}>"
_UNAVAILABLE: Final = ("[UNAVAILABLE]", "[INUSE]", "[LIMIT]", "TOO MANY", "TEMPORAR", "MAXIMUM NUMBER OF CONNECTIONS")


class Imap(Source):
    """The mails of an account on an IMAP server: ``Imap("imap.example.org", folders=["INBOX", "Projects/*"])``.

    A mail is one document, with its source as ``raw``, whichever folders it is in; their names are the field
    ``folders``, so a mail that is moved changes in this field. The id is the server's (EMAILID, X-GM-MSGID), where it
    has one, else the Message-ID and a hash of the headers. Other fields: ``message_id``, ``url`` (``mid:``), ``size``,
    ``mime``. ``steps.extract_text`` reads text, sender, date and attachments.

    Nothing is changed on the server, and no mail is marked as read. A mail that is marked as deleted counts as deleted.
    Where each mail was is remembered: folders that say that nothing has changed are not listed. If the server numbers
    its mails again (UIDVALIDITY), headers are read again, and nothing is doubled or deleted.

    Needs the package IMAPClient: ``pip install 'ferryman[imap]'``. Each task that reads has a connection.

    Args:
        host: name or address of the server.
        folders: globs of names as the server has them (``*`` stands for anything), or special uses (``\\\\Sent``).
        exclude: folders that are left out, likewise.
        user, password: of the account; ``${NAME}`` is filled in from the environment. The password must come from
            there.
        token: a token for XOAUTH2 in place of the password, as ``"${NAME}"``.
        security: "tls"; "starttls"; "none", for servers of this machine only.
        port: None: 993 with TLS, else 143.
        ca: file with the certificate of an authority to trust in place of the system's.
        max_bytes: largest mail; a larger one is rejected.
        timeout_s: time that the server may take to connect, and to send the next bytes (seconds).
        may_be_empty: whether no mails at all are normal, and delete every document.
        prefix, detect, max_deleted: see ``Source``.

    Raises:
        UsageError: an argument that cannot be meant.
    """

    def __init__(
        self,
        host: str,
        folders: str | Sequence[str] = "*",
        *,
        exclude: str | Sequence[str] = ("\\Junk", "\\Trash"),
        user: str = "${IMAP_USER}",
        password: str = "${IMAP_PASSWORD}",
        token: str = "",
        security: Security = "tls",
        port: int | None = None,
        ca: str | os.PathLike[str] | None = None,
        max_bytes: int = limits.MAX_FILE_BYTES,
        timeout_s: float = limits.IMAP_TIMEOUT_S,
        may_be_empty: bool = False,
        prefix: str = "",
        detect: Detect = "fingerprint",
        max_deleted: float = limits.MAX_DELETED_BEHIND_LOGIN,
    ) -> None:
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        if not isinstance(host, str) or not host or not set(host).isdisjoint("/@ ") or not host.isprintable():
            raise UsageError("Imap(host): give the name of a server, such as imap.example.org, without a login.")
        if security not in get_args(Security):
            raise UsageError(f"security={security!r}: choose one of {', '.join(get_args(Security))}.")
        if security == "none" and not _is_this_machine(host):
            raise UsageError(f"Imap({host!r}): without TLS a password would be readable on the way: security='tls'.")
        if any(secret and not variable_names(secret) for secret in (password, token)):
            raise UsageError(
                f"Imap({host!r}): a password or token comes from the environment: password='${{IMAP_PASSWORD}}'."
            )
        if not timeout_s > 0 or max_bytes < 1:
            raise UsageError("Imap(): timeout_s and max_bytes must be above 0.")
        self.host = host
        self.folders = check_patterns("Imap", "folders", folders)
        self.exclude = check_patterns("Imap", "exclude", exclude)
        self.may_be_empty = may_be_empty
        self.max_bytes = max_bytes
        port = port or (993 if security == "tls" else 143)
        ca = None if ca is None else absolute(ca)
        self._server = ServerAddress(host, port, security, user, password, token, ca, timeout_s)
        self._process = 0
        self._reader: MailReader | None = None

    def __repr__(self) -> str:
        return f"Imap({self.host!r}, folders={list(self.folders)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": 0, "_reader": None}

    def place(self) -> str | None:
        return f"imap://{self.host}:{self._server.port}"

    def not_installed(self) -> str:
        return "" if find_spec("imapclient") else "Imap needs IMAPClient: pip install 'ferryman[imap]'"

    def check(self) -> None:
        """Raises:
        UsageError: a package is missing.
        Misconfigured: a variable is not in the environment, or the login is refused.
        Unavailable: the server does not answer.
        """
        if missing := self.not_installed():
            raise UsageError(f"{missing}.")
        with suppress(OSError, imaplib.IMAP4.error):
            self._server.connect().logout()

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[Any]:
        return [dict(bookmarks)]

    def listing(self, partition: dict[str, Any]) -> Iterator[Listed | Bookmark | Note]:
        known = load_folders(partition)
        reader = MailReader(self._server)
        scan = FolderScan(reader, known, self._is_selected)
        try:
            scan.run()
        finally:
            reader.close()
        if not self.may_be_empty:
            raise_if_empty(repr(self), scan.folders, known)
        yield from list_mails(scan.folders, "validity", self.max_bytes)
        yield from changed_bookmarks(partition, known, scan.folders)
        if scan.failures:
            raise TransientError(f"{self!r}: {'; '.join(scan.failures.values())}")

    def read(self, listed: Listed) -> Document | Fetched | Unchanged:
        if (same := unless_known(listed)) is not None:
            return same
        location = MailLocation.decode(listed.location)
        if self._process != os.getpid() or self._reader is None:  # a forked process must not use its parent's socket
            self._process, self._reader = os.getpid(), MailReader(self._server)
        content = self._reader.content(location.folder, location.where, int(location.name))
        if content is None:
            raise TransientError(
                f"{listed.id}: it is not in {location.folder!r} any more, where it was listed. The next scan finds it "
                "where it is"
            )
        return mail_document(listed, location, content)

    def _is_selected(self, name: str, flags: Sequence[str]) -> bool:
        return is_selected(name, flags, self.folders) and not is_selected(name, flags, self.exclude)


class ServerAddress(NamedTuple):
    """Server and login, with the names of variables in place of secrets."""

    host: str
    port: int
    security: Security
    user: str
    password: str
    token: str
    ca: str | None
    timeout_s: float

    def connect(self) -> IMAPClient:
        """Return a connection that is logged in.

        Raises:
            Misconfigured: the login is refused, or the server cannot be trusted.
            Unavailable: the server does not answer, or wants no more connections.
        """
        from imapclient import IMAPClient, SocketTimeout

        user = expand_variables(self.user, repr(self.shown))
        secret = expand_variables(self.token or self.password, repr(self.shown))
        context = None
        if self.security != "none":
            context = ssl.create_default_context(cafile=self.ca)
        with ExitStack() as on_error:
            try:
                client = IMAPClient(
                    self.host, self.port, ssl=self.security == "tls", ssl_context=context,
                    timeout=SocketTimeout(self.timeout_s, self.timeout_s),
                )  # fmt: skip
                on_error.callback(_end, client)
                client._imap.debug = 0  # it would log what is sent
                if self.security == "starttls":
                    client.starttls(context)
            except ssl.SSLEOFError as e:
                raise Unavailable(f"{self.shown} ends the connection: {plain_text(e)}") from e
            except ssl.SSLError as e:
                raise Misconfigured(f"{self.shown}: {plain_text(e)}. Is it the right host, and its certificate?") from e
            except (OSError, imaplib.IMAP4.error) as e:
                raise Unavailable(f"{self.shown} does not answer: {plain_text(e)}") from e
            self._log_in(client, user, secret)
            on_error.pop_all()
        return client

    def _log_in(self, client: IMAPClient, user: str, secret: str) -> None:
        try:
            if self.token:
                client.oauth2_login(user, secret)
            elif user.isascii() and secret.isascii():
                client.login(user, secret)
            else:
                client.plain_login(user, secret)
        except imaplib.IMAP4.error as e:
            said = plain_text(e).replace(secret, "…")
            if isinstance(e, imaplib.IMAP4.abort) or any(sign in said.upper() for sign in _UNAVAILABLE):
                raise Unavailable(f"{self.shown} does not take the login now: {said}") from None
            raise Misconfigured(f"{self.shown} refuses the login of {user}: {said}") from None
        except OSError as e:
            raise Unavailable(f"{self.shown} does not answer: {plain_text(e)}") from e

    @property
    def shown(self) -> str:
        return f"{self.host}:{self.port}"


class MailReader:
    """Connection that is opened again when it was lost, once for each request."""

    def __init__(self, server: ServerAddress) -> None:
        self._server = server
        self._client: IMAPClient | None = None
        self._folder: str | None = None
        self._examined: dict[str, Any] = {}

    def close(self) -> None:
        if self._client is not None:
            with suppress(OSError, imaplib.IMAP4.error):
                self._client.logout()
        self._client = None

    def _ask(self, request: Callable[[IMAPClient], _T], folder: str | None = None) -> _T:
        """Return what a request returns, on a connection that has this folder open."""
        for attempt in (1, 2):
            try:
                if self._client is None:
                    self._client, self._folder = self._server.connect(), None
                if folder is not None and folder != self._folder:
                    self._folder = None
                    self._examined = _read_status(self._client.select_folder(folder, readonly=True))
                    self._folder = folder
                return request(self._client)
            except (OSError, imaplib.IMAP4.abort) as e:
                if self._client is not None:
                    _end(self._client)
                self._client = None
                if attempt == 2:
                    raise Unavailable(f"{self._server.shown} ends the connection: {plain_text(e)}") from e
        raise AssertionError

    def list_folders(self) -> list[tuple[str, list[str]]]:
        """Return the names and flags of the folders that can be opened."""
        found = self._ask(lambda client: client.list_folders())
        folders = [(name, [flag.decode("ascii", "replace") for flag in flags]) for flags, _, name in found]
        return [(name, flags) for name, flags in folders if _NOT_SELECTABLE.isdisjoint(map(str.lower, flags))]

    def status(self, folder: str) -> dict[str, Any]:
        """Return what a folder says of itself, without opening it."""

        def ask(client: IMAPClient) -> dict[str, Any]:
            if self._folder is not None:
                self._folder = None
                if client.has_capability("UNSELECT"):
                    client.unselect_folder()
                else:
                    client.close_folder()  # expunges nothing, for it is open for reading only
            wanted = ["MESSAGES", "UIDNEXT", "UIDVALIDITY"]
            wanted += ["HIGHESTMODSEQ"] if client.has_capability("CONDSTORE") else []
            return _read_status(client.folder_status(folder, wanted))

        return self._ask(ask)

    def open(self, folder: str) -> dict[str, Any]:
        """Open a folder again, for reading only; return what it says of itself."""
        self._folder = None
        self._ask(lambda _: None, folder)
        return self._examined

    def search(self, folder: str, end: int, *criteria: str) -> Iterator[int]:
        """Yield the UIDs below ``end`` of a folder's mails that fulfil criteria, by ranges."""
        start, width = 1, SEARCHED_UIDS
        while start < end:
            last = min(start + width, end) - 1
            found = self._ask(partial(_search, words=["UID", f"{start}:{last}", *criteria]), folder)
            yield from sorted({uid for uid in found if start <= uid <= last})
            width = width * 2 if len(found) < SEARCHED_UIDS // 2 else SEARCHED_UIDS
            start = last + 1

    def identify(self, folder: str, uids: Sequence[int]) -> dict[int, KnownMail]:
        """Return the ids and sizes of mails; those that are gone, or that the server does not give, are left out."""
        found: dict[int, KnownMail] = {}
        waiting = [uids[at : at + FETCHED_MAILS] for at in range(0, len(uids), FETCHED_MAILS)][::-1]
        while waiting:
            some = waiting.pop()
            try:
                found |= self._ask(partial(_identify, uids=some), folder)
            except imaplib.IMAP4.error:  # one of them may be damaged
                if len(some) > 1:
                    waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
        return found

    def content(self, folder: str, validity: int, uid: int) -> bytes | None:
        """Return the source of a mail; None if it is not there any more."""

        def ask(client: IMAPClient) -> bytes | None:
            if self._examined["validity"] != validity:
                return None
            content = client.fetch([uid], ["BODY.PEEK[]"]).get(uid, {}).get(b"BODY[]")
            return content if isinstance(content, bytes) else None

        try:
            content = self._ask(ask, folder)
            if content is None:
                self._folder = None  # what has come since a folder was opened may not show in it
                content = self._ask(ask, folder)
            return content
        except (imaplib.IMAP4.error, UnclearFolder) as e:
            raise TransientError(f"{self._server.shown}: {folder!r}, mail {uid}: {plain_text(e)}") from e


def _end(client: IMAPClient) -> None:
    """End a connection without a word to the server."""
    with suppress(OSError, imaplib.IMAP4.error):
        client.shutdown()


class FolderScan:
    """Looks at all folders until none changes meanwhile: a mail may be moved from one not yet seen into one that was.

    Attributes:
        folders: name -> folder as it is now; one that failed is as it was.
        failures: name -> why its mails are not known now.
    """

    def __init__(
        self,
        reader: MailReader,
        known: Mapping[str, MailFolder],
        is_selected: Callable[[str, Sequence[str]], bool],
    ) -> None:
        self._reader = reader
        self._is_selected = is_selected
        self.folders = dict(known)
        self.failures: dict[str, str] = {}
        self._listed: set[str] = set()

    def run(self) -> None:
        for _ in range(_ROUNDS):
            if not self._look():
                return
        self.failures[""] = f"its folders changed while they were listed, {_ROUNDS} times in a row"

    def _look(self) -> bool:
        """Look at each folder; return whether one has changed."""
        selected = [name for name, flags in self._reader.list_folders() if self._is_selected(name, flags)]
        gone = self.folders.keys() - set(selected)
        for name in gone:
            del self.folders[name]
            self.failures.pop(name, None)
        changed = [name for name in selected if name not in self.failures and self._look_at(name)]
        return bool(changed or gone)

    def _look_at(self, name: str) -> bool:
        """List a folder if it says that it has changed; return whether it does."""
        before = self.folders.get(name)
        try:
            status = self._reader.status(name)
            if before is not None and _has_same_mails(before.state, status):
                is_marked_alike = status["modseq"] is not None and status["modseq"] == before.state["modseq"]
                if name in self._listed or is_marked_alike:
                    return False
            self.folders[name] = self._list(name, before, status)
            self._listed.add(name)
        except (imaplib.IMAP4.error, UnclearFolder) as e:
            if any(name == each for each, _ in self._reader.list_folders()):
                self.failures[name] = f"folder {name!r}: {plain_text(e)}"
            else:
                self.folders.pop(name, None)  # it has vanished between two answers
        return True

    def _list(self, name: str, before: MailFolder | None, status: Mapping[str, Any]) -> MailFolder:
        examined = self._reader.open(name)
        state = {key: status[key] if value is None else value for key, value in examined.items()}
        end = state["next"] or 1 << 32
        known: dict[str, KnownMail] = {}
        if before is not None and before.state["validity"] == state["validity"]:
            known = before.mails
        if known and before is not None and _has_same_mails(before.state, state):
            uids = list(known)
        else:
            uids = [str(uid) for uid in self._reader.search(name, end)]
        new = self._reader.identify(name, [int(uid) for uid in uids if uid not in known])
        found = {uid: mail for uid in uids if (mail := known.get(uid) or new.get(int(uid))) is not None}
        deleted = {str(uid) for uid in self._reader.search(name, end, "DELETED")}
        mails = {uid: marked(mail, uid in deleted) for uid, mail in found.items()}
        if len(mails) < state["messages"] and _has_same_mails(state, self._reader.status(name)):
            self.failures[name] = f"folder {name!r}: it announces {state['messages']} mails and shows {len(mails)}"
            return MailFolder({**state, "next": None}, {**known, **mails})
        return MailFolder(state, mails)


class UnclearFolder(Exception):
    """Raised if a folder does not say what is needed to know its mails."""


def _read_status(answer: Mapping[bytes, Any]) -> dict[str, Any]:
    """Return what a folder says of itself in an answer to STATUS or EXAMINE."""
    state = {
        "validity": answer.get(b"UIDVALIDITY"),
        "next": answer.get(b"UIDNEXT"),
        "messages": answer.get(b"MESSAGES", answer.get(b"EXISTS")),
        "modseq": answer.get(b"HIGHESTMODSEQ") or None,
    }
    if state["validity"] is None or state["messages"] is None:
        raise UnclearFolder("the server does not report its number of mails (MESSAGES) or its UIDVALIDITY")
    return state


def _has_same_mails(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether a folder has the same mails: numbers only grow, so with none new, and as many, none is gone."""
    return one["next"] is not None and all(one[key] == other[key] for key in ("validity", "next", "messages"))


def _search(client: IMAPClient, words: list[str]) -> list[int]:
    return client.search(words)  # type: ignore[no-any-return]


def _identify(client: IMAPClient, uids: Sequence[int]) -> dict[int, KnownMail]:
    server_id = _server_id(client)
    ids: dict[int, str] = {}
    sizes: dict[int, int] = {}
    unnamed: list[int] = []
    for uid, answer in client.fetch(uids, ["RFC822.SIZE", server_id or _HEADER]).items():
        sizes[uid] = answer.get(b"RFC822.SIZE", 0)
        headers = answer.get(b"BODY[HEADER]<0>")
        if server_id:
            ids[uid] = _text_of(answer.get(server_id.encode()))
        elif isinstance(headers, bytes) and names_a_mail(headers):
            ids[uid] = mail_id(headers)
        elif b"BODY[HEADER]<0>" in answer:
            unnamed.append(uid)
    if unnamed:
        for uid, answer in client.fetch(unnamed, [_BEGINNING]).items():
            ids[uid] = mail_id(answer.get(b"BODY[]<0>") or b"")
    return {uid: KnownMail(id, sizes[uid]) for uid, id in ids.items() if id and uid in sizes}


def _server_id(client: IMAPClient) -> str:
    """Return what the server calls its own ids of mails; "" if it has none."""
    if client.has_capability("OBJECTID"):
        return "EMAILID"
    return "X-GM-MSGID" if client.has_capability("X-GM-EXT-1") else ""


def _text_of(value: Any) -> str:
    value = value[0] if isinstance(value, tuple) and value else value
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
