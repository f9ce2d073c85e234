"""The same data files in another folder, without their bytes being read where that can be helped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ferryman.storage import files
from ferryman.storage.disk import discarding, temporary_name
from ferryman.storage.files import StatePath
from ferryman.storage.tables import Table

_AT_ONCE: Final = 16
"""Objects that a store is asked to copy at a time."""


def carry_table(source: Table, target: Table, transactions: Mapping[str, int]) -> None:
    """Have the rows of a table, and no others, in another one as well, in one commit; nothing where that is so."""
    adds = [file for path, file in source.files.items() if path not in target.files]
    removes = [path for path in target.files if path not in source.files]  # by a run that was killed
    if source.files and not adds and not removes:
        return
    link_files(source.folder, target.folder, [file.path for file in adds])
    target.commit("version", adds=adds, removes=removes, transactions=transactions)


def link_files(source: StatePath, target: StatePath, names: Iterable[str]) -> None:
    """Files that never change, durably, under the same names: as links, or as copies where the file system has none; in
    an object store as copies that it makes."""
    if isinstance(source, Path) and isinstance(target, Path):
        _link(source, target, list(names))
        return
    assert not isinstance(source, Path)
    assert not isinstance(target, Path)
    pairs = [((source / name).key, (target / name).key) for name in names]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(lambda pair: source.store.copy(*pair), pairs):
            pass


def _link(source: Path, target: Path, names: list[str]) -> None:
    for name in names:
        here, there = source / name, target / name
        there.parent.mkdir(parents=True, exist_ok=True)
        if there.exists() and there.samefile(here):  # by a run that was killed
            continue
        try:
            os.link(here, there)
        except OSError:
            temporary = temporary_name(there)
            with discarding(temporary):
                shutil.copyfile(here, temporary)
                files.fsync_file(temporary)
                temporary.replace(there)
    for folder in {target, *((target / name).parent for name in names)}:
        files.fsync_folder(folder)
