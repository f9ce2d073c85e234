"""The source of a Git repository, read by the ``git`` command from a bare clone without blobs."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree, which
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote_from_bytes, unquote, urlsplit, urlunsplit

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import (
    BadDocument,
    FerrymanError,
    Misconfigured,
    TransientError,
    Unavailable,
    UsageError,
    hide_secrets,
)
from ferryman.net import urls as net
from ferryman.net.relative_paths import absolute
from ferryman.sources.base import Bookmark, Complete, Detect, Fetched, Listed, Note, Source, Unchanged, id_of, name_of
from ferryman.sources.files import iso_time, mime_of
from ferryman.sources.globs import Globs

_T = TypeVar("_T")
_WHOLE: Final = ""
_ESTIMATED_BYTES: Final = 4096
"""Size of a file whose blob is not here: a tree does not have it."""

_FETCHED_BLOBS: Final = 20_000
"""Blobs asked for at once: their names are 40 bytes each."""

_REFS: Final = "refs/ferryman/"
KEPT_COMMITS: Final = 20
"""Commits of which the clone keeps the trees: the last ones of each plan and ref that reads it."""

_FEW_BLOBS: Final = 1000
"""Blobs that are asked for without a look at what is here: the server is not asked if all of them are."""

_LFS: Final = b"version https://git-lfs.github.com/spec/v1\n"
_LFS_BYTES: Final = 1024
_SUBMODULE, _SYMLINK, _NOTHING = b"160000", b"120000", b"000000"
_NO_FILES: Final = frozenset({_SUBMODULE, _SYMLINK, _NOTHING})
_BEGUN: Final = ""
"""Options of a commit that was listed, and of which not every wave has been committed yet, or whose deletes wait."""

_PUSHES: Final = 3
"""Times that the commit of a branch may be pushed over by force while it is fetched."""

_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SCP: Final = re.compile(r"(?:([\w.-]+)@)?([\w.-]+):(?!//)(.+)")
_LINKS: Final = {
    "github.com": "{url}/blob/{ref}/{path}",
    "gitlab.com": "{url}/-/blob/{ref}/{path}",
    "codeberg.org": "{url}/src/branch/{ref}/{path}",
    "bitbucket.org": "{url}/src/{ref}/{path}",
}
"""Host -> where it shows a file."""

_REFUSED: Final = (
    *("authentication failed", "could not read username", "could not read password", "terminal prompts disabled"),
    *("permission denied", "returned error: 401", "returned error: 403", "invalid username or password"),
)
_MISSING: Final = ("does not exist", "not found", "does not appear to be a git repository", "not a git repository")
_NO_REF: Final = ("couldn't find remote ref", "not our ref", "unadvertised object")


class Git(Source):
    """The files of a Git repository: ``Git("https://example.org/handbook.git", include="**/*.md")``.

    The id of a document is the file's path, its ``raw`` the content; its fields are ``url``, ``name``, ``path``,
    ``size`` and ``mime``. A file has changed if its blob has. Only what differs from the commit that was read last is
    listed. A force push is a commit like any other. What is no longer in the tree is deleted.

    Symbolic links are not documents, submodules are named and not read (name their repositories as sources of their
    own), and a file kept in Git LFS is rejected, since its content is not in the repository. Names that are not UTF-8
    are encoded in ids, as ``Files`` does.

    A bare clone without blobs is kept in the user's cache on each machine that reads; blobs are fetched many at once.
    Needs the command ``git``, 2.30 or newer.

    Args:
        url: of the repository: https, ssh, file, ``git@host:path``, or a path. A login in it is masked, and
            ``${NAME}`` filled in from the environment.
        ref: a branch, a tag, or a commit.
        include, exclude: globs for paths, as in ``Files``.
        auth: user and password or token, as ``("git", "${TOKEN}")``, or the whole value of ``Authorization``; sent only
            to this host by https or http, and after no redirect.
        dates: whether documents get ``modified`` and ``author`` of the last commit that touched the file. This takes
            the whole history, and changes nothing about whether a file has changed.
        link: where a file is shown, with ``{url}``, ``{ref}`` and ``{path}``; "": that of the hosts that are known,
            else the repository's address with the path behind a ``#``.
        max_bytes: largest file; a larger one is rejected.
        timeout_s: longest time for one command (seconds).
        cache: folder of the clones; None: ``ferryman/git`` in the user's cache.
        prefix, detect, max_deleted: see ``Source``. Two refs of a repository need a prefix each.
    """

    lists_all = False
    encodes_ids = True
    uncounted = frozenset({"modified", "author"})

    def __init__(
        self,
        url: str | os.PathLike[str],
        ref: str = "main",
        *,
        include: str | Sequence[str] = "**/*",
        exclude: str | Sequence[str] | None = None,
        auth: str | tuple[str, str] | None = None,
        dates: bool = False,
        link: str = "",
        max_bytes: int = limits.MAX_FILE_BYTES,
        timeout_s: float = limits.GIT_TIMEOUT_S,
        cache: str | os.PathLike[str] | None = None,
        prefix: str = "",
        detect: Detect = "fingerprint",
        max_deleted: float | None = None,
    ) -> None:
        has_secret = auth is not None
        self._url, login = _split_login(os.fspath(url))
        if login and auth is None:
            user, _, password = login.partition(":")
            auth, has_secret = (user, password), bool(password)
        if max_deleted is None:
            max_deleted = limits.MAX_DELETED_BEHIND_LOGIN if has_secret else limits.MAX_DELETED
        super().__init__(prefix=prefix, detect=detect, max_deleted=max_deleted)
        if not ref or ref.startswith("-") or any(c in ref for c in " ~^:?*[\\\n\0") or ".." in ref:
            raise UsageError(f"Git(ref={ref!r}): give the name of a branch or a tag, or a commit.")
        if not timeout_s > 0 or max_bytes < 1:
            raise UsageError("Git(): timeout_s and max_bytes must be above 0.")
        self.ref = ref
        self._globs = Globs(include, exclude)
        self._auth = _check_auth(auth)
        self._dates = dates
        self._link = link or _LINKS.get(urlsplit(self._url).hostname or "", "{url}#{path}")
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._cache = None if cache is None else absolute(cache)
        rules = (self._url, ref, include, exclude, dates, self._link, max_bytes, prefix)
        self._options = blake2b(repr(rules).encode(), digest_size=8).hexdigest()
        self._process = 0
        self._repository: Repository | None = None
        self._reader: BlobReader | None = None

    def __repr__(self) -> str:
        return f"Git({net.redact(self._url)!r}, ref={self.ref!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": 0, "_repository": None, "_reader": None}

    def place(self) -> str | None:
        return net.strip_secrets(self._url)

    def not_installed(self) -> str:
        return "" if which("git") else "Git needs the command git: install it (Debian, Ubuntu: apt-get install git)"

    def check(self) -> None:
        """Raises:
        UsageError: the command is missing.
        Misconfigured: a secret is not in the environment.
        """
        if missing := self.not_installed():
            raise UsageError(f"{missing}.")
        Repository(self._url, self._auth, self._timeout_s, self._cache)

    def partitions_after(self, bookmarks: Mapping[str, Any]) -> list[Any]:
        return [(bookmarks.get(_WHOLE), None)]

    def partitions_of_ids(self, ids: Collection[str], bookmarks: Mapping[str, Any]) -> list[Any] | None:
        known = bookmarks.get(_WHOLE)
        return [(known, sorted(ids))] if known else None

    def listing(
        self, partition: tuple[dict[str, Any] | None, Sequence[str] | None]
    ) -> Iterator[Listed | Bookmark | Complete | Note]:
        known, wanted = partition
        repository = self._own_repository
        if wanted is not None:
            assert known is not None
            picked = set(wanted)
            tree = self._tree_of(repository, known["commit"], None)
            yield from (self._listed(file, tree) for file in tree.files if file.id in picked)
            return
        commit = repository.resolve(self.ref)
        base = known if known and known["options"] == self._options and self.detect != "none" else None
        if base is not None and base["commit"] == commit:
            return
        tree = self._tree_of(repository, commit, base)
        yield from (self._listed(file, tree) for file in tree.files)
        yield from map(Document.deleted, tree.deleted)
        if tree.submodules:
            yield Note(
                f"{self!r}: {len(tree.submodules)} submodules are not read, such as {tree.submodules[0]}: name their "
                "repositories as sources of their own"
            )
        if not tree.selected and known and known["files"]:
            raise TransientError(
                f"{self!r}: no file of commit {tree.commit[:12]} is included, where {known['files']} were known"
            )
        begun = {"commit": tree.commit, "options": _BEGUN, "files": tree.selected}
        done = {**begun, "options": self._options}
        if tree.is_whole:
            yield Bookmark(_WHOLE, begun, begun)
            yield Complete("", Bookmark(_WHOLE, done))
        else:
            yield Bookmark(_WHOLE, done, begun)

    def read(self, listed: Listed) -> Document | Fetched | Unchanged:
        blob, commit = listed.location.split()
        fingerprint = f"{blob}-{self._options}"
        if listed.known == fingerprint:
            return Unchanged()
        content = self._blob(blob, commit)
        if len(content) < _LFS_BYTES and content.startswith(_LFS):
            raise BadDocument(
                f"{listed.id}: it is kept in Git LFS, and its content is not in the repository. Leave it out with "
                "exclude=, or read it by another source."
            )
        path = name_of(listed.id)
        fields: dict[str, Any] = {
            "url": self.link_to(path),
            "name": os.fsencode(path.rpartition("/")[2]).decode("utf-8", "replace"),
            "path": os.fsencode(path).decode("utf-8", "replace"),
            "size": len(content),
            "mime": mime_of(path.rpartition("/")[2]),
        }
        if self._dates and (last := self._own_repository.last_commits(commit).get(path)):
            fields["modified"], fields["author"] = last
        return Fetched(Document.of(listed.id, fields, content), fingerprint)

    def link_to(self, path: str) -> str:
        """Return where a file is shown."""
        shown = quote_from_bytes(os.fsencode(path))
        return self._link.format(url=_without_git(self._url), ref=self.ref, path=shown)

    def _tree_of(self, repository: Repository, commit: str, base: Mapping[str, Any] | None) -> Tree:
        """Return what is to be listed of a commit, or of the one that has replaced it.

        Args:
            base: bookmark of the commit that was listed last, with these options; None: everything is to be listed.
        """
        for attempt in range(1, _PUSHES + 1):
            try:
                return repository.prepared(partial(self._take, repository, commit, base))
            except CommitGone as e:  # it was pushed over by force since it was named
                if _COMMIT.fullmatch(self.ref):
                    raise
                if attempt == _PUSHES:
                    raise Unavailable(f"{self!r}: its commit was replaced {_PUSHES} times while it was read") from e
                commit = repository.resolve(self.ref)
        raise AssertionError

    def _take(self, repository: Repository, commit: str, base: Mapping[str, Any] | None = None) -> Tree:
        """Fetch a commit with the blobs that are to be listed, and return it; see ``_tree_of``."""
        repository.fetch(commit, whole=self._dates)
        tree = None if base is None else self._changes(repository, commit, base)
        if tree is None:
            tree = self._files(repository, commit)
        return tree._replace(sizes=repository.fetch_blobs({file.blob for file in tree.files}))

    def _files(self, repository: Repository, commit: str) -> Tree:
        """Return all selected files of a commit."""
        files: list[TreeFile] = []
        submodules: list[str] = []
        for mode, blob, path in repository.tree(commit):
            if mode == _SUBMODULE:
                submodules.append(id_of(path))
            elif self._selects(mode, path):
                files.append(TreeFile(id_of(path), blob))
        return Tree(commit, files, [], submodules, len(files), is_whole=True)

    def _changes(self, repository: Repository, commit: str, base: Mapping[str, Any]) -> Tree | None:
        """Return the selected files that differ from the commit that was listed last, whatever lies between the two.

        None: it is not here any more, or so many files are missing that ``max_deleted`` may hold their deletes, which
        takes a whole listing.
        """
        files: list[TreeFile] = []
        deleted: list[str] = []
        submodules: list[str] = []
        count = base["files"]
        if not repository.has(base["commit"]):
            return None
        try:
            changes = repository.changes(base["commit"], commit)
        except FerrymanError:  # somebody has removed some of its trees
            return None
        for change in changes:
            was, now = self._selects(change.old_mode, change.path), self._selects(change.mode, change.path)
            count += now - was
            if now:
                files.append(TreeFile(id_of(change.path), change.blob))
            elif was:
                deleted.append(id_of(change.path))
            if change.mode == _SUBMODULE != change.old_mode:
                submodules.append(id_of(change.path))
        if not count or self._may_hold(deleted, base["files"]):
            return None
        return Tree(commit, files, deleted, submodules, count)

    def _selects(self, mode: bytes, path: str) -> bool:
        return mode not in _NO_FILES and (self._globs.everything or self._globs.selects(path))

    def _may_hold(self, deleted: Sequence[str], known: int) -> bool:
        """Return whether deletes might have to wait for an operator, had they been found by a whole listing."""
        if len(deleted) > self.max_deleted * known:
            return True
        folders = Counter(id.partition("/")[0] for id in deleted if "/" in id)
        return self.max_deleted < 1 and any(n > self.max_deleted * limits.GUARDED_DOCUMENTS for n in folders.values())

    def _listed(self, file: TreeFile, tree: Tree) -> Listed:
        size = tree.sizes.get(file.blob, _ESTIMATED_BYTES)
        refused = ""
        if size > self._max_bytes:
            refused = (
                f"{file.id} has {size} bytes, more than max_bytes={self._max_bytes}. Raise the limit, or exclude it."
            )
        return Listed(file.id, size, f"{file.blob}-{self._options}", f"{file.blob} {tree.commit}", refused)

    def _blob(self, blob: str, commit: str) -> bytes:
        """Return the content of a blob; on a machine whose clone does not have it, all that it lacks is fetched."""
        repository = self._own_repository
        reader = self._own_reader
        content = reader.read(blob) if reader is not None else None
        for again in (False, True):  # what the clone has may be damaged: then it is made again
            if content is not None:
                return content
            if self._reader is not None:
                self._reader.close()
            try:
                repository.prepared(partial(self._take, repository, commit), from_scratch=again)
            except CommitGone as e:
                raise TransientError(
                    f"{self!r}: commit {commit[:12]} was pushed over by force since it was listed. The next scan lists "
                    "what is there now"
                ) from e
            self._reader = BlobReader(repository)
            content = self._reader.read(blob)
        if content is None:
            raise TransientError(f"{self!r}: blob {blob} of commit {commit[:12]} cannot be fetched")
        return content

    @property
    def _own_repository(self) -> Repository:
        """Return this process's repository. A forked process must not use the pipes of its parent."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._repository = Repository(self._url, self._auth, self._timeout_s, self._cache)
            self._reader = None
        assert self._repository is not None
        return self._repository

    @property
    def _own_reader(self) -> BlobReader | None:
        repository = self._own_repository
        if self._reader is None and repository.exists:
            self._reader = BlobReader(repository)
        return self._reader


class CommitGone(Misconfigured):
    """Error of a commit that the repository does not have, or not any more."""


class TreeFile(NamedTuple):
    """File of a commit's tree."""

    id: str
    blob: str


class TreeChange(NamedTuple):
    """Path that differs in two commits: its modes, and its object in the second one."""

    old_mode: bytes
    mode: bytes
    blob: str
    path: str


class Tree(NamedTuple):
    """Files of a commit that are to be listed, and what is known of it."""

    commit: str
    files: list[TreeFile]
    deleted: list[str]
    """Ids of files that the commit listed before had."""
    submodules: list[str]
    selected: int
    """Number of all selected files of the commit."""
    is_whole: bool = False
    """Whether ``files`` are all of them, not only those that differ."""
    sizes: Mapping[str, int] = {}
    """Blob -> its size, for those that are here."""


class Repository:
    """A bare clone of a repository, without blobs, in a cache that all processes of this machine share.

    Args:
        auth: see ``Git``; variables are filled in, and the values are in the environment of commands only.
        cache: folder of the clones; None: the user's.
    """

    def __init__(self, url: str, auth: str | tuple[str, str] | None, timeout_s: float, cache: str | None) -> None:
        self._url = url
        self._timeout_s = timeout_s
        folder = Path(cache) if cache is not None else _user_cache()
        self.path = folder / f"{blake2b(url.encode('utf-8', 'surrogateescape'), digest_size=12).hexdigest()}.git"
        self._shown = net.redact(url)
        self._secrets, settings = _authorization(url, auth)
        self._commits: dict[str, dict[str, tuple[str | None, str]]] = {}
        self._lock: int | None = None
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
            "GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=30"),
            "GIT_OPTIONAL_LOCKS": "0",
            "LC_ALL": "C",
            "GIT_CONFIG_COUNT": str(len(settings)),
        }
        for number, (key, value) in enumerate(settings.items()):
            self.environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}

    @property
    def exists(self) -> bool:
        return (self.path / "HEAD").exists()

    def prepared(self, prepare: Callable[[], _T], *, from_scratch: bool = False) -> _T:
        """Return what a function returns that reads and changes the clone, while no other process changes it.

        A clone that a kill, a power cut or a full disk has damaged is made again: it is only a copy.

        Args:
            prepare: called again after a clone was made again.
            from_scratch: make the clone again in any case.
        """
        with self._locked():
            if from_scratch:
                rmtree(self.path, ignore_errors=True)
            was_there = self.exists
            if not was_there:
                self._make()
            try:
                return prepare()
            except FerrymanError:
                if not was_there or self._is_sound():
                    raise
            rmtree(self.path)
            self._make()
            return prepare()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from changing the clone. Commands inherit the lock, so that one whose process was killed
        ends before the next begins; locks of git's own that are left are of commands that were killed."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(f"{self.path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in (*self.path.glob("*.lock"), *self.path.glob("refs/**/*.lock")):
                left.unlink(missing_ok=True)
            self._lock = lock.fileno()
            try:
                yield
            finally:
                self._lock = None

    def _make(self) -> None:
        self._commits.clear()
        made = self.path.with_suffix(".new")
        rmtree(made, ignore_errors=True)
        self._git("init", "--quiet", "--bare", str(made), inside=False)
        for key, value in (
            ("remote.origin.url", self._url),
            ("remote.origin.promisor", "true"),
            ("remote.origin.partialclonefilter", "blob:none"),
        ):
            self._git("config", "--file", str(made / "config"), key, value, inside=False)
        rmtree(self.path, ignore_errors=True)
        os.rename(made, self.path)

    def _is_sound(self) -> bool:
        """Return whether the clone is whole, so that a command failed for another reason."""
        try:
            found = self._git("config", "--get", "remote.origin.url")
            self._git("fsck", "--connectivity-only", "--no-dangling", "--no-progress")
        except FerrymanError:
            return False
        return os.fsdecode(found).rstrip("\n") == self._url

    def resolve(self, ref: str) -> str:
        """Return the commit that a ref names now.

        Raises:
            Misconfigured: there is no such ref or repository, or the login is refused.
            Unavailable: the repository is away.
        """
        if _COMMIT.fullmatch(ref):
            return ref
        wanted = ref if ref.startswith("refs/") or ref == "HEAD" else f"refs/*/{ref}"
        lines = self._git("ls-remote", "--", self._url, wanted, f"{wanted}^{{}}", inside=False).decode().splitlines()
        found = {name: commit for commit, _, name in (line.partition("\t") for line in lines)}
        for name in (f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"{ref}^{{}}", ref):
            if name in found:
                return found[name]
        raise Misconfigured(
            f"{self._shown} has no branch or tag {ref!r}{self._branches()}. Correct ref=, then run again."
        )

    def _branches(self) -> str:
        text = self._git("ls-remote", "--symref", "--", self._url, "HEAD", "refs/heads/*", inside=False).decode()
        head = next((line.split()[1] for line in text.splitlines() if line.startswith("ref:")), "")
        names = sorted({line.partition("\trefs/heads/")[2] for line in text.splitlines()} - {""})
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        default = f"; its default is {head.removeprefix('refs/heads/')!r}" if head else ""
        return f". It has {shown or 'no branch'}{default}"

    def fetch(self, commit: str, *, whole: bool) -> None:
        """Fetch a commit and its trees, unless they are here.

        Args:
            whole: with all commits before it.
        """
        is_shallow = (self.path / "shallow").exists()
        refs = self._refs()
        if commit in refs.values() and not (whole and is_shallow):
            return
        self._commits.clear()
        depth = ["--unshallow"] if whole and is_shallow else [] if whole else ["--depth=1"]
        number = max((int(name) for name in refs if name.isdecimal()), default=0) + 1
        options = ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--filter=blob:none", *depth]
        self._git("fetch", *options, "origin", f"+{commit}:{_REFS}{number:012}")
        for name in sorted(refs)[: -KEPT_COMMITS + 1]:
            self._git("update-ref", "-d", f"{_REFS}{name}")

    def has(self, commit: str) -> bool:
        """Return whether a commit was fetched lately. Asked for the commit itself, git would fetch all of it."""
        return commit in self._refs().values()

    def _refs(self) -> dict[str, str]:
        """Return the commits that were fetched, by the names of their refs, which grow."""
        lines = self._git("for-each-ref", "--format=%(refname) %(objectname)", _REFS, lazy=False).decode().splitlines()
        return {name.removeprefix(_REFS): commit for name, commit in (line.split(" ") for line in lines)}

    def fetch_blobs(self, blobs: Collection[str]) -> dict[str, int]:
        """Fetch the blobs that are not here, many at once; return blob -> size."""
        sizes = self._all_sizes() if len(blobs) > _FEW_BLOBS else {}
        wanted = sorted(blob for blob in blobs if blob not in sizes)
        for at in range(0, len(wanted), _FETCHED_BLOBS):
            names = "".join(f"{blob}\n" for blob in wanted[at : at + _FETCHED_BLOBS])
            self._git(
                *("-c", "fetch.negotiationAlgorithm=noop", "fetch", "--quiet", "--no-tags", "--no-write-fetch-head"),
                *("--no-auto-gc", "--recurse-submodules=no", "--filter=blob:none", "--stdin", "origin"),
                given=names.encode(),
            )
        return sizes | self._sizes(wanted)

    def _all_sizes(self) -> dict[str, int]:
        """Return the size of every object that is here. Asked for one that is not, git would fetch it."""
        options = ["--batch-all-objects", "--unordered", "--batch-check=%(objectname) %(objectsize)"]
        return _blob_sizes(self._git("cat-file", *options, lazy=False))

    def _sizes(self, blobs: Collection[str]) -> dict[str, int]:
        if not blobs:
            return {}
        names = "".join(f"{blob}\n" for blob in blobs)
        return _blob_sizes(
            self._git("cat-file", "--batch-check=%(objectname) %(objectsize)", given=names.encode(), lazy=False)
        )

    def changes(self, old: str, new: str) -> list[TreeChange]:
        """Return the paths in which two commits differ, in the order of their trees."""
        options = ["-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--ignore-submodules=none"]
        parts = self._git("diff-tree", *options, f"{old}^{{tree}}", f"{new}^{{tree}}", lazy=False).split(b"\0")
        changes = []
        for head, path in zip(parts[::2], parts[1::2], strict=False):
            old_mode, mode, _, blob, _ = head[1:].split(b" ")
            changes.append(TreeChange(old_mode, mode, blob.decode(), os.fsdecode(path)))
        return changes

    def tree(self, commit: str) -> Iterator[tuple[bytes, str, str]]:
        """Yield mode, object and path of everything in a commit's tree, in its order."""
        for entry in self._git("ls-tree", "-r", "-z", "--full-tree", commit, lazy=False).split(b"\0"):
            if entry:
                head, _, path = entry.partition(b"\t")
                mode, _, blob = head.split(b" ")
                yield mode, blob.decode(), os.fsdecode(path)

    def last_commits(self, commit: str) -> dict[str, tuple[str | None, str]]:
        """Return for each path the time and author of the last commit that touched it, by one walk."""
        if commit not in self._commits:
            text = self._git(
                "log", "--format=%x01%ct %an", "--name-only", "-z", "--no-renames", "-m", commit, lazy=False
            )
            found: dict[str, tuple[str | None, str]] = {}
            last: tuple[str | None, str] = (None, "")
            for part in text.split(b"\0"):
                line = part.lstrip(b"\n")
                if line.startswith(b"\x01"):
                    when, _, author = line[1:].partition(b" ")
                    author, _, path = author.partition(b"\n")
                    last = (iso_time(float(when)), author.decode("utf-8", "replace"))
                    line = path.lstrip(b"\n")
                if line:
                    found.setdefault(os.fsdecode(line), last)
            self._commits = {commit: found}
        return self._commits[commit]

    def command(self, *arguments: str, lazy: bool, inside: bool = True) -> list[str]:
        """Return a command line; nothing secret is in it.

        Args:
            lazy: whether git may fetch an object that is not here, one by one.
            inside: in the clone.
        """
        settings = ["gc.auto=0", "maintenance.auto=false", "core.hooksPath=/dev/null", "core.quotePath=false"]
        if not lazy:
            settings.append("remote.origin.promisor=false")
        options = [word for each in settings for word in ("-c", each)]
        return ["git", *([f"--git-dir={self.path}"] if inside else []), *options, *arguments]

    def _git(self, *arguments: str, given: bytes = b"", lazy: bool = True, inside: bool = True) -> bytes:
        """Run a command, and return what it prints.

        Raises:
            Misconfigured, Unavailable: it failed; see ``resolve``.
        """
        command = self.command(*arguments, lazy=lazy, inside=inside)
        try:
            done = subprocess.run(
                command,
                input=given,
                capture_output=True,
                env=self.environment,
                timeout=self._timeout_s,
                check=False,
                pass_fds=() if self._lock is None else (self._lock,),
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{self._shown}: git {_verb(arguments)} took more than {self._timeout_s:g} s") from None
        except OSError as e:
            raise Misconfigured(f"git cannot be run: {e.strerror}. Install it, then run again.") from e
        if done.returncode:
            raise self._error(_verb(arguments), done.stderr)
        return done.stdout

    def _error(self, verb: str, printed: bytes) -> Exception:
        text = hide_secrets(printed.decode("utf-8", "replace"), self._secrets)
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("warning:")]
        why = " ".join(lines[:3]).replace(self._url, self._shown)[:300] or "it says nothing"
        lower = why.lower()
        said = f"{self._shown}: git {verb} failed: {why}"
        if any(word in lower for word in _REFUSED):
            return Misconfigured(f"{said}. Give a login by auth=, or correct it, then run again.")
        if any(word in lower for word in _NO_REF):
            return CommitGone(f"{said}. The commit is not there any more: correct ref=, then run again.")
        if "redirect" in lower and self._secrets:
            return Misconfigured(f"{said}. A login is not sent after a redirect: give the address that it leads to.")
        if any(word in lower for word in _MISSING):
            return Misconfigured(f"{said}. Correct the address, then run again.")
        return Unavailable(said)


class BlobReader:
    """Reads blobs of a clone by one process, which waits for the next."""

    def __init__(self, repository: Repository) -> None:
        command = repository.command("cat-file", "--batch", lazy=False)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=repository.environment,
        )

    def read(self, blob: str) -> bytes | None:
        """Return the content of a blob; None: it is not here."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{blob}\n".encode())
            process.stdin.flush()
        except OSError:
            return None
        head = process.stdout.readline().split()
        if len(head) != 3 or head[1] != b"blob":
            return None
        size = int(head[2])
        content = process.stdout.read(size + 1)
        return content[:-1] if len(content) == size + 1 else None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def __del__(self) -> None:
        if sys is not None and not sys.is_finalizing():  # else it ends with its standard input
            self.close()


def _blob_sizes(text: bytes) -> dict[str, int]:
    """Return blob -> size, from the output of ``git cat-file``; blobs that it calls "missing" are left out."""
    pairs = (line.split(" ") for line in text.decode().splitlines())
    return {blob: int(size) for blob, size in pairs if size.isdecimal()}


def _verb(arguments: Sequence[str]) -> str:
    words = iter(arguments)
    for word in words:
        if word == "-c":
            next(words, None)
        else:
            return word
    return ""


def _split_login(url: str) -> tuple[str, str]:
    """Return a repository's address without a login, and the login; a path becomes absolute.

    Raises:
        UsageError: it is not an address.
    """
    if not url or url.startswith("-") or "\0" in url or "\n" in url or "::" in url.partition("/")[0]:
        raise UsageError(f"Git({net.redact(url)!r}): give the address of a repository, or its path.")
    if "://" not in url:
        if _SCP.fullmatch(url) and not url.startswith((".", "/")):
            return url, ""  # the user of ssh is no secret
        return absolute(url), ""
    try:
        net.check_login(url)
    except ValueError as e:
        raise UsageError(f"Git(): {e}.") from None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "ssh", "git", "file"):
        raise UsageError(f"Git({net.redact(url)!r}): its scheme is none of https, http, ssh, git, file.")
    login, at, host = parts.netloc.rpartition("@")
    if not at or (parts.scheme == "ssh" and ":" not in login):
        return url, ""
    return urlunsplit(parts._replace(netloc=host)), unquote(login)


def _check_auth(auth: str | tuple[str, str] | None) -> str | tuple[str, str] | None:
    """Return credentials, checked; a message has no value in it."""
    if auth is None:
        return None
    from ferryman.net import http

    try:
        return http.check_auth(auth)
    except ValueError as e:
        raise UsageError(f"Git(): {e}.") from None


def _authorization(url: str, auth: str | tuple[str, str] | None) -> tuple[list[str], dict[str, str]]:
    """Return secrets that must not be shown, and settings that send them to this host only.

    Raises:
        Misconfigured: a variable is missing.
    """
    if auth is None:
        return [], {}
    from ferryman.net import http

    shown = f"source Git({net.redact(url)})"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise Misconfigured(f"{shown}: auth= is for http and https; ssh has keys.")
    if isinstance(auth, str):
        value = http.expand_variables(auth, shown)
        secrets = value.split()[1:] or [value]
    else:
        user, password = (http.expand_variables(part, shown) for part in auth)
        value = net.basic_auth(f"{user}:{password}")
        secrets = [password, *value.split()[1:]]
    try:
        http.check_header("auth=", value)
    except ValueError as e:
        raise Misconfigured(f"{shown}: {e}. Correct it, then run again.") from None
    host = f"{parts.scheme}://{parts.netloc}/"
    settings = {
        f"http.{host}.extraHeader": f"Authorization: {value}",
        "http.followRedirects": "false",
        "credential.helper": "",
    }
    return [secret for secret in secrets if secret], settings


def _user_cache() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return Path(configured if os.path.isabs(configured) else Path.home() / ".cache", "ferryman", "git")


def _without_git(url: str) -> str:
    """Return the address at which a host shows a repository."""
    match = _SCP.fullmatch(url) if "://" not in url and not url.startswith("/") else None
    if match is not None:
        url = f"https://{match[2]}/{match[3]}"
    elif "://" not in url:
        url = f"file://{quote_from_bytes(os.fsencode(url))}"
    return url.removesuffix("/").removesuffix(".git")
