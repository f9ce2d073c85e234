"""``Git``: real repositories, over HTTP and from a folder, become listings."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.servers.registry import require_command
from tests.support.git_server import GitRepository, GitServer
from tests.support.plan_world import PlanWorld, place, trial
from tests.support.waiting import wait_until

from ferryman import limits
from ferryman.document import Document
from ferryman.errors import BadDocument, Misconfigured, TransientError, Unavailable, UsageError
from ferryman.sources import Bookmark, Complete, Fetched, Git, Listed, Note, Source, Unchanged
from ferryman.sources import git as module
from ferryman.testing.sources import SourceSuite

__all__ = ["place", "trial"]

require_command("git")


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    made = GitRepository(tmp_path / "served" / "handbook.git")
    made.put("README.md", "# Read me")
    made.put("docs/a.md", "About ferries")
    made.put("docs/b.txt", "About rivers")
    made.commit()
    return made


@pytest.fixture
def server(repository: GitRepository) -> Iterator[GitServer]:
    with GitServer(repository.path.parent) as served:
        yield served


class Scans:
    """Scans of a repository, each with the memory of the one before."""

    def __init__(self, url: str | Path, cache: Path, **options: Any) -> None:
        self.url, self.options = url, {"cache": cache, **options}
        self.marks: dict[str, Any] = {}

    def source(self, **options: Any) -> Git:
        return Git(self.url, **{**self.options, **options})

    def scan(self, **options: Any) -> list[str]:
        source = self.source(**options)
        [partition] = source.partitions_after(self.marks)
        found = list(source.listing(partition))
        self.listed = {entry.id: entry for entry in found if isinstance(entry, Listed)}
        self.notes = [entry.text for entry in found if isinstance(entry, Note)]
        complete = [entry for entry in found if isinstance(entry, Complete)]
        self.is_complete = bool(complete)
        self.deleted = [entry.id for entry in found if isinstance(entry, Document)]
        counts = [entry for entry in found if isinstance(entry, Bookmark)]
        counts += [entry.bookmark for entry in complete if entry.bookmark is not None]
        self.marks |= {entry.partition: entry.value for entry in counts}
        return list(self.listed)

    def read(self, id: str, **options: Any) -> Any:
        found = self.source(**options).read(self.listed[id])
        assert isinstance(found, Fetched)
        return found.document


def test_the_tree_of_a_branch(server: GitServer, tmp_path: Path) -> None:
    scans = Scans(server.url("handbook.git"), tmp_path / "cache")
    assert scans.scan() == ["README.md", "docs/a.md", "docs/b.txt"]
    assert scans.is_complete
    doc = scans.read("docs/a.md")
    assert (doc.raw, doc.fields) == (
        b"About ferries",
        {
            "url": server.url("handbook#docs/a.md"),
            "name": "a.md",
            "path": "docs/a.md",
            "size": 13,
            "mime": "text/markdown",
        },
    )
    assert [entry.size for entry in scans.listed.values()] == [9, 13, 12]


def test_the_same_commit_and_options_list_nothing(server: GitServer, repository: GitRepository, tmp_path: Path) -> None:
    scans = Scans(server.url("handbook.git"), tmp_path / "cache", include="**/*.md")
    assert scans.scan() == ["README.md", "docs/a.md"]
    server.requests.clear()
    assert (scans.scan(), scans.is_complete) == ([], False)
    assert len(server.requests) <= 2, "only the ref was asked for"
    assert scans.scan(include="**/*.txt") == ["docs/b.txt"], "another option lists all"
    fingerprints = {id: entry.fingerprint for id, entry in scans.listed.items()}
    repository.put("docs/a.md", "About ferries on ropes")
    repository.commit()
    assert scans.scan(include="**/*.txt") == []
    scans.marks.clear()
    assert scans.scan(include="**/*.txt") == ["docs/b.txt"]
    assert {id: entry.fingerprint for id, entry in scans.listed.items()} == fingerprints
    assert scans.source(include="**/*.txt").read(scans.listed["docs/b.txt"]._replace(
        known=fingerprints["docs/b.txt"]
    )) == Unchanged()  # fmt: skip


@pytest.mark.rule("git.changes")
def test_a_commit_lists_what_differs(server: GitServer, repository: GitRepository, tmp_path: Path) -> None:
    """Also where the commits have no history in common, and whatever became of a path."""
    other = GitRepository(tmp_path / "other")
    other.commit()
    for name in ("docs/link.md", "docs/file.md", "docs/module.md", "docs/same.md"):
        repository.put(name, name)
    repository.commit()
    scans = Scans(server.url("handbook.git"), tmp_path / "cache", include="docs/**", max_deleted=1)
    assert len(scans.scan()) == 6
    repository.put("docs/a.md", "Changed")
    repository.put("docs/new.md", "New")
    repository.put("README.md", "Not selected")
    repository.git("rm", "--quiet", "docs/b.txt", "docs/module.md")
    (repository.path / "docs/link.md").unlink()
    (repository.path / "docs/link.md").symlink_to("a.md")
    (repository.path / "docs/file.md").chmod(0o755)
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(other.path), "docs/module.md")
    repository.commit()
    repository.git("checkout", "--quiet", "--orphan", "other")
    repository.commit()
    repository.git("branch", "--move", "--force", "main")
    before = len(server.requests)
    assert scans.scan() == ["docs/a.md", "docs/file.md", "docs/new.md"]
    assert (scans.deleted, scans.is_complete) == (["docs/b.txt", "docs/link.md", "docs/module.md"], False)
    assert (scans.notes, scans.marks[""]["files"]) == ([scans.notes[0]], 4)
    assert "docs/module.md: name their repositories" in scans.notes[0]
    assert [scans.read(id).raw for id in ("docs/a.md", "docs/new.md")] == [b"Changed", b"New"]
    assert len(server.requests) - before < 10
    assert (scans.scan(), scans.deleted) == ([], [])


@pytest.mark.slow
def test_two_hundred_thousand_files(tmp_path: Path) -> None:
    """Each once; of the same commit none, and of a commit of one file that one."""
    repository = GitRepository(tmp_path / "many")

    def commit(parent: str, files: dict[str, str]) -> None:
        lines = ["commit refs/heads/main", "committer A <a@example.org> 1714557600 +0000", "data 1", "x", parent]
        lines += [f"M 100644 inline {name}\ndata {len(text)}\n{text}" for name, text in files.items()]
        repository.git("fast-import", "--quiet", input="\n".join([*filter(None, lines), ""]).encode())

    names = [f"d{n // 1000}/f{n}.txt" for n in range(200_000)]
    commit("", {name: f"In {name}" for name in names})
    scans = Scans(repository.path, tmp_path / "cache")
    assert (sorted(scans.scan()), scans.is_complete) == (sorted(names), True)
    assert scans.scan() == []
    commit("from refs/heads/main^0", {names[777]: "It has changed"})
    assert scans.scan() == [names[777]]
    assert scans.read(names[777]).raw == b"It has changed"


@pytest.mark.rule("git.changes")
def test_listings_of_differences_add_up(repository: GitRepository, tmp_path: Path) -> None:
    """After every commit of a random history, the state that listings lead to is the tree."""
    random = Random(42)
    scans = Scans(repository.path, tmp_path / "cache", exclude="**/*.tmp", max_deleted=1)
    known: dict[str, str] = {}
    for _ in range(12):
        for _ in range(random.randint(1, 5)):
            name = f"{random.choice(['', 'a/', 'b/c/'])}{random.randint(0, 5)}.{random.choice(['md', 'tmp'])}"
            if random.random() < 0.4 and (repository.path / name).exists():
                (repository.path / name).unlink()
            else:
                repository.put(name, f"{random.randint(0, 3)}")
        repository.commit()
        scans.scan()
        if scans.is_complete:
            known.clear()
        known |= {id: entry.fingerprint for id, entry in scans.listed.items()}
        for id in scans.deleted:
            del known[id]
        whole = Scans(repository.path, tmp_path / "cache", exclude="**/*.tmp", max_deleted=1)
        whole.scan()
        assert known == {id: entry.fingerprint for id, entry in whole.listed.items()}
    assert not scans.is_complete


@pytest.mark.rule("git.changes")
@pytest.mark.parametrize(
    ("removed", "options"), [(2, {}), (51, {}), (1, {"detect": "none"})], ids=["a share", "a folder", "every document"]
)
def test_what_takes_a_whole_listing(
    repository: GitRepository, tmp_path: Path, removed: int, options: dict[str, Any]
) -> None:
    """Deletes that ``max_deleted`` may hold, of all files or of a folder; a source that processes everything."""
    if removed > 3:
        for n in range(300):
            repository.put(f"many/{n}.txt", f"{n}")
    repository.commit()
    scans = Scans(repository.path, tmp_path / "cache", **options)
    scans.scan()
    names = [f"many/{n}.txt" for n in range(removed)] if removed > 3 else ["README.md", "docs/a.md"][:removed]
    repository.git("rm", "--quiet", *names)
    repository.commit()
    assert (len(scans.scan()), scans.deleted, scans.is_complete) == (
        303 - removed if removed > 3 else 3 - removed,
        [],
        True,
    )


@pytest.mark.parametrize("lost", ["clone", "refs"])
def test_a_clone_without_the_last_commit(repository: GitRepository, tmp_path: Path, lost: str) -> None:
    """It was removed, or somebody has tidied up in it."""
    scans = Scans(repository.path, tmp_path / "cache", max_deleted=1)
    scans.scan()
    repository.git("rm", "--quiet", "docs/a.md")
    repository.commit()
    clone = clone_in(tmp_path / "cache")
    if lost == "clone":
        shutil.rmtree(clone)
    else:
        shutil.rmtree(clone / "refs" / "ferryman")
    assert (scans.scan(), scans.deleted, scans.is_complete) == (["README.md", "docs/b.txt"], [], True)


def test_several_plans_read_one_clone(repository: GitRepository, tmp_path: Path) -> None:
    """Each lists what differs from the commit that it has read, until they are many commits behind."""
    behind, often = Scans(repository.path, tmp_path / "cache"), Scans(repository.path, tmp_path / "cache")
    behind.scan()
    often.scan()
    for n in range(3):
        repository.put("docs/a.md", f"{n}")
        repository.commit()
        assert (often.scan(), often.is_complete) == (["docs/a.md"], False)
    assert (behind.scan(), behind.is_complete) == (["docs/a.md"], False)


def test_a_clone_keeps_few_commits(repository: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_COMMITS", 2)
    scans = Scans(repository.path, tmp_path / "cache")
    for n in range(4):
        repository.put("docs/a.md", f"{n}")
        repository.commit()
        scans.scan()
    assert len(list(clone_in(tmp_path / "cache").glob("refs/ferryman/*"))) == 2


def test_blobs_are_fetched_at_once(server: GitServer, repository: GitRepository, tmp_path: Path) -> None:
    for n in range(300):
        repository.put(f"many/{n}.txt", f"File {n}")
    repository.commit()
    scans = Scans(server.url("handbook.git"), tmp_path / "cache")
    assert len(scans.scan()) == 303
    asked = len(server.requests)
    assert asked < 12
    source = scans.source()
    for entry in scans.listed.values():
        source.read(entry)
    assert len(server.requests) == asked, "no blob was asked for by itself"
    repository.put("many/7.txt", "Changed")
    repository.commit()
    scans.scan()
    assert len(server.requests) < asked + 10


def test_another_machine_fetches_what_it_lacks(server: GitServer, tmp_path: Path) -> None:
    scans = Scans(server.url("handbook.git"), tmp_path / "cache")
    scans.scan()
    assert scans.read("docs/a.md", cache=tmp_path / "elsewhere").raw == b"About ferries"


def test_a_force_push_and_a_file_that_went(server: GitServer, repository: GitRepository, tmp_path: Path) -> None:
    scans = Scans(server.url("handbook.git"), tmp_path / "cache")
    scans.scan()
    repository.git("checkout", "--quiet", "--orphan", "other")
    repository.git("rm", "--quiet", "-r", "--force", ".")
    repository.put("docs/a.md", "Another history")
    repository.commit()
    repository.git("branch", "--force", "main", "other")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "--quiet", "--prune=now")
    assert (scans.scan(), scans.is_complete) == (["docs/a.md"], True), (
        "most files are gone: an operator may have to say so"
    )
    assert scans.read("docs/a.md").raw == b"Another history"


def test_a_commit_that_the_server_no_longer_has(server: GitServer, repository: GitRepository, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="commit is not there any more"):
        Scans(server.url("handbook.git"), tmp_path / "cache", ref="1" * 40).scan()


def test_a_renamed_branch_deletes_nothing(server: GitServer, repository: GitRepository, tmp_path: Path) -> None:
    scans = Scans(server.url("handbook.git"), tmp_path / "cache")
    scans.scan()
    repository.git("branch", "--move", "main", "trunk")
    with pytest.raises(Misconfigured, match=r"no branch or tag 'main'\. It has trunk; its default is 'trunk'"):
        scans.scan()


@pytest.mark.parametrize("ref", ["HEAD", "refs/heads/main", "v1", "v2", "commit", "feature/x"])
def test_refs(server: GitServer, repository: GitRepository, tmp_path: Path, ref: str) -> None:
    commit = repository.git("rev-parse", "HEAD")
    repository.git("tag", "v1")
    repository.git("tag", "--annotate", "--message=2", "v2")
    repository.git("branch", "feature/x")
    scans = Scans(server.url("handbook.git"), tmp_path / "cache", ref=commit if ref == "commit" else ref)
    assert len(scans.scan()) == 3
    assert scans.marks[""]["commit"] == commit


def test_two_refs_of_one_repository(server: GitServer, repository: GitRepository, tmp_path: Path) -> None:
    repository.git("checkout", "--quiet", "-b", "next")
    repository.put("docs/a.md", "The next version")
    repository.commit()
    one = Scans(server.url("handbook.git"), tmp_path / "cache", prefix="main/")
    two = Scans(server.url("handbook.git"), tmp_path / "cache", ref="next", prefix="next/")
    assert one.scan() == two.scan()
    assert (one.read("docs/a.md").raw, two.read("docs/a.md").raw) == (b"About ferries", b"The next version")
    assert len(list((tmp_path / "cache").glob("*.git"))) == 1


def test_submodules_links_lfs_and_odd_names(repository: GitRepository, tmp_path: Path) -> None:
    other = GitRepository(tmp_path / "other")
    other.put("x", "x")
    other.commit()
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "--quiet", str(other.path), "vendor/other")
    (repository.path / "link.md").symlink_to("README.md")
    repository.put("big.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    repository.put(b"latin-\xe9.txt", "Latin")
    repository.put("a b#%\n.txt", "odd")
    repository.commit()
    scans = Scans(repository.path, tmp_path / "cache")
    assert set(scans.scan()) == {
        ".gitmodules", "README.md", "a b%23%25%0A.txt", "big.bin", "docs/a.md", "docs/b.txt", "latin-%E9.txt",
    }  # fmt: skip
    assert any("1 submodules are not read, such as vendor/other" in note for note in scans.notes)
    assert scans.read("latin-%E9.txt").raw == b"Latin"
    assert scans.read("a b%23%25%0A.txt").raw == b"odd"
    with pytest.raises(BadDocument, match="Git LFS"):
        scans.read("big.bin")


def test_a_large_file_is_refused(repository: GitRepository, tmp_path: Path) -> None:
    scans = Scans(repository.path, tmp_path / "cache", max_bytes=10)
    scans.scan()
    assert [id for id, entry in scans.listed.items() if entry.refused] == ["docs/a.md", "docs/b.txt"]


def test_dates_and_authors(server: GitServer, repository: GitRepository, tmp_path: Path) -> None:
    repository.put("docs/b.txt", "Changed")
    repository.commit(GIT_COMMITTER_DATE="2025-01-02T03:04:05Z", GIT_AUTHOR_NAME="Bob Éluard")
    scans = Scans(server.url("handbook.git"), tmp_path / "cache", dates=True)
    scans.scan(dates=False)
    scans.scan()
    for id, when, who in (
        ("docs/a.md", "2024-05-01T10:00:00Z", "Ann Miller"),
        ("docs/b.txt", "2025-01-02T03:04:05Z", "Bob Éluard"),
    ):
        doc = scans.read(id)
        assert (doc["modified"], doc["author"]) == (when, who)


def test_a_tree_without_files_deletes_nothing(server: GitServer, repository: GitRepository, tmp_path: Path) -> None:
    scans = Scans(server.url("handbook.git"), tmp_path / "cache")
    scans.scan()
    repository.git("rm", "--quiet", "-r", ".")
    repository.commit()
    with pytest.raises(TransientError, match="where 3 were known"):
        scans.scan()


def test_a_repository_that_is_away_and_back(repository: GitRepository, tmp_path: Path) -> None:
    with GitServer(repository.path.parent) as served:
        scans = Scans(served.url("handbook.git"), tmp_path / "cache")
        scans.scan()
    with pytest.raises(Unavailable, match="failed"):
        scans.scan()
    gone = Scans(tmp_path / "nowhere", tmp_path / "cache")
    with pytest.raises(Misconfigured, match="Correct the address"):
        gone.scan()


def test_a_token_is_seen_by_the_host_only(
    server: GitServer, repository: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret-token")
    server.token = "s3cret-token"
    url = f"http://git:${{TOKEN}}@{server.host}/handbook.git"
    seen: list[list[str]] = []
    monkeypatch.setattr("ferryman.sources.git.subprocess.run", _noting(seen))
    for scans in (
        Scans(url, tmp_path / "one"),
        Scans(server.url("handbook.git"), tmp_path / "two", auth=("git", "${TOKEN}")),
    ):
        assert len(scans.scan()) == 3
        assert scans.read("docs/a.md").raw == b"About ferries"
        assert scans.source().max_deleted == 0.1
        assert "TOKEN" not in f"{scans.source()!r} {scans.source().place()}"
        assert "s3cret" not in repr(scans.marks)
    assert "s3cret" not in repr(seen)
    assert seen
    for path in tmp_path.rglob("config"):
        assert "s3cret" not in path.read_text()
    server.token = "another"
    with pytest.raises(Misconfigured, match="login") as e:
        Scans(url, tmp_path / "three").scan()
    assert "s3cret" not in str(e.value)
    monkeypatch.delenv("TOKEN")
    with pytest.raises(Misconfigured, match="TOKEN"):
        scans.source().check()


def _noting(seen: list[list[str]]) -> Any:
    import subprocess

    run = subprocess.run

    def noting(command: list[str], **options: Any) -> Any:
        seen.append(command)
        return run(command, **options)

    return noting


def test_a_token_is_not_sent_after_a_redirect(
    server: GitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret-token")
    with GitServer(tmp_path) as first:
        first.redirect = f"http://{server.host}"
        with pytest.raises((Misconfigured, Unavailable)):
            Scans(first.url("handbook.git"), tmp_path / "cache", auth=("git", "${TOKEN}")).scan()
        assert all("authorization" not in headers for _, headers in server.requests)
        assert len(Scans(first.url("handbook.git"), tmp_path / "cache2").scan()) == 3, "without a token it is followed"


def test_two_processes_clone_at_once(server: GitServer, tmp_path: Path) -> None:
    pids = []
    for _ in range(3):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = 0 if len(Scans(server.url("handbook.git"), tmp_path / "cache").scan()) == 3 else 2
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]


# -- what is damaged, and what is gone -----------------------------------------------------------------------------


def clone_in(cache: Path) -> Path:
    [clone] = cache.glob("*.git")
    return clone


@pytest.mark.parametrize("left", ["shallow.lock", "config.lock", "refs/ferryman/*"])
def test_locks_that_a_killed_command_has_left(
    server: GitServer, repository: GitRepository, tmp_path: Path, left: str
) -> None:
    """https://github.com/argoproj/argo-cd/issues/27930, https://github.com/os-autoinst/openQA/pull/4835: a fetch was
    killed, and each one after it ended with "shallow.lock: File exists"."""
    scans = Scans(server.url("handbook.git"), tmp_path / "cache")
    scans.scan()
    clone = clone_in(tmp_path / "cache")
    for path in [clone / left] if "*" not in left else list(clone.glob(left)):
        Path(f"{path}.lock" if "*" in left else path).touch()
    repository.put("docs/a.md", "Changed")
    repository.commit()
    assert scans.scan() == ["docs/a.md"]
    assert scans.read("docs/a.md").raw == b"Changed"


def test_the_command_of_a_killed_process_is_waited_for(server: GitServer, tmp_path: Path) -> None:
    """It goes on after its process, and has the clone until it ends."""
    scans = Scans(server.url("handbook.git"), tmp_path / "cache")
    server.held.clear()
    if not (pid := os.fork()):
        try:
            scans.scan()
        finally:
            os._exit(1)
    wait_until(lambda: server.waiting)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    [lock] = (tmp_path / "cache").glob("*.lock")
    with lock.open("w") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    server.held.set()
    assert scans.scan() == ["README.md", "docs/a.md", "docs/b.txt"]


def _empty_packs(clone: Path) -> None:
    for path in clone.glob("objects/pack/*.pack"):
        path.chmod(0o644)
        path.write_bytes(b"")


def _damage_blobs(clone: Path) -> None:
    for path in clone.glob("objects/pack/*.pack"):
        path.chmod(0o644)
        content = bytearray(path.read_bytes())
        content[20:-20] = bytes(len(content) - 40)
        path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "nothing but a folder": lambda clone: [shutil.rmtree(path) for path in clone.iterdir() if path.is_dir()],
    "empty HEAD": lambda clone: (clone / "HEAD").write_bytes(b""),
    "empty config": lambda clone: (clone / "config").write_bytes(b""),
    "empty refs": lambda clone: [path.write_bytes(b"") for path in clone.glob("refs/ferryman/*")],
    "empty packs": _empty_packs,
    "zeros in packs": _damage_blobs,
}


@pytest.mark.parametrize(("damage", "changed"), [(damage, "packs" not in damage) for damage in DAMAGES])
def test_a_damaged_clone_is_made_again(
    server: GitServer, repository: GitRepository, tmp_path: Path, damage: str, changed: bool
) -> None:
    """https://github.com/kubernetes/test-infra/issues/15758, https://github.com/prefix-dev/rattler-build/pull/1987: a
    cache was damaged by a kill, and everything that used it failed until somebody removed it."""
    scans = Scans(server.url("handbook.git"), tmp_path / "cache")
    scans.scan()
    DAMAGES[damage](clone_in(tmp_path / "cache"))
    if changed:
        repository.put("docs/a.md", "Changed")
        repository.commit()
        assert scans.scan() == ["README.md", "docs/a.md", "docs/b.txt"]
    assert scans.read("docs/a.md").raw == (b"Changed" if changed else b"About ferries")
    assert scans.read("docs/b.txt").raw == b"About rivers"


def test_a_sound_clone_is_kept_while_the_server_fails(server: GitServer, tmp_path: Path) -> None:
    Scans(server.url("handbook.git"), tmp_path / "cache").scan()
    kept = (clone_in(tmp_path / "cache") / "config").stat().st_ino
    server.token = "another"
    repository = module.Repository(server.url("handbook.git"), None, 60, str(tmp_path / "cache"))
    with pytest.raises(Misconfigured):
        repository.prepared(lambda: repository.fetch("1" * 40, whole=True))
    assert (clone_in(tmp_path / "cache") / "config").stat().st_ino == kept


def push_over(repository: GitRepository, text: str) -> None:
    """Replace the branch by another history; nothing of the old one is left."""
    repository.git("checkout", "--quiet", "--orphan", "other")
    repository.put("docs/a.md", text)
    repository.commit()
    repository.git("branch", "--move", "--force", "main")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "--quiet", "--prune=now")


def test_a_document_waits_and_its_commit_is_pushed_over(
    server: GitServer, repository: GitRepository, tmp_path: Path
) -> None:
    """On a machine that never had it: what is there now is listed, and what cannot be read any more is tried again."""
    scans = Scans(server.url("handbook.git"), tmp_path / "cache")
    scans.scan()
    push_over(repository, "Another")
    elsewhere = scans.source(cache=tmp_path / "elsewhere")
    [partition] = elsewhere.partitions_of_ids(["docs/a.md", "docs/gone.md"], scans.marks) or []
    [listed] = elsewhere.listing(partition)
    assert isinstance(listed, Listed)
    found = elsewhere.read(listed)
    assert isinstance(found, Fetched)
    assert found.document.raw == b"Another"
    with pytest.raises(TransientError, match="pushed over by force"):
        scans.source(cache=tmp_path / "third").read(scans.listed["README.md"])


@pytest.mark.parametrize("pushes", [1, 9])
def test_a_branch_that_is_pushed_over_while_it_is_fetched(
    server: GitServer, repository: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pushes: int
) -> None:
    scans = Scans(server.url("handbook.git"), tmp_path / "cache")
    really, left = module.Repository.resolve, list(range(pushes))

    def resolve(self: Any, ref: str) -> str:
        found = really(self, ref)
        if left:
            push_over(repository, f"{left.pop()}")
        return found

    monkeypatch.setattr(module.Repository, "resolve", resolve)
    if pushes == 1:
        assert scans.scan() == ["README.md", "docs/a.md", "docs/b.txt"]
        assert scans.read("docs/a.md").raw == b"0"
    else:
        with pytest.raises(Unavailable, match="replaced 3 times"):
            scans.scan()
        assert scans.marks == {}


def test_more_files_wait_than_can_be_named(
    trial: PlanWorld, place: Path, repository: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a commit that was listed, and is not listed again: they are tried again all the same."""
    monkeypatch.setattr(limits, "NAMED_DOCUMENTS", 2)
    broken = place / "broken"
    broken.touch()

    def step(doc: Document) -> Document:
        if broken.exists():
            raise TransientError("not now")
        return doc

    trial.build(step, source=Git(repository.path, cache=place / "cache"))
    assert trial.run(wait=0).pending == 3
    broken.unlink()
    assert trial.run().exit == 0
    assert sorted(trial.arrived()) == ["README.md", "docs/a.md", "docs/b.txt"]


@pytest.mark.parametrize("url", ["", "-upload-pack=x", "ext::sh -c x", "ftp://h/r", "https://u:p/w@h/r"])
def test_addresses_that_cannot_be_meant(url: str) -> None:
    with pytest.raises(UsageError):
        Git(url)


@pytest.mark.parametrize("ref", ["", "-x", "a..b", "a b", "a:b"])
def test_refs_that_cannot_be_meant(ref: str) -> None:
    with pytest.raises(UsageError, match="ref="):
        Git("https://example.org/r", ref)


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("https://github.com/o/r.git", "https://github.com/o/r/blob/main/a%20b.md"),
        ("https://user:t@gitlab.com/o/r", "https://gitlab.com/o/r/-/blob/main/a%20b.md"),
        ("git@example.org:o/r.git", "https://example.org/o/r#a%20b.md"),
    ],
)
def test_links(url: str, link: str) -> None:
    assert Git(url).link_to("a b.md") == link


class TestGit(SourceSuite):
    """The promises of the port."""

    def source(self, folder: Path) -> Source:
        self.repository = GitRepository(folder / "r")
        for name in "abc":
            self.repository.put(name, name)
        self.repository.commit()
        return Git(self.repository.path, cache=folder / "cache")

    def change(self, source: Source, id: str) -> None:
        self.repository.put(id, "changed")
        self.repository.commit()

    def remove(self, source: Source, id: str) -> None:
        self.repository.git("rm", "--quiet", id)
        self.repository.commit()

    def test_a_removed_document_is_not_listed(self, tmp_path: Path) -> None:
        """What a commit has can be read for as long as the clone is there, so only the listing is looked at."""
        source = self.source(tmp_path)
        before = [entry.id for entry in self._scan(source)]
        self.remove(source, before[0])
        assert [entry.id for entry in self._scan(source)] == before[1:]
