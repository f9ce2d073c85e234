"""The same data files in another folder, without their bytes being read where that can be helped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ferryman.storage import files
from ferryman.storage.files import StatePath
from ferryman.storage.tables import Table

_AT_ONCE: Final = 16
"""Objects that a store is asked to copy at a time."""


def carry_table(source: Table, target: Table, transactions: Mapping[str, int]) -> None:
    """Have all rows of a table in another one as well, in one commit; nothing where they are there already."""
    if source.files and source.files.keys() <= target.files.keys():
        return
    link_files(source.folder, target.folder, source.files)
    target.commit("version", adds=source.files.values(), transactions=transactions)


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
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, target / name)
        except OSError:
            shutil.copyfile(source / name, target / name)
            files.fsync_file(target / name)
    for folder in {target, *((target / name).parent for name in names)}:
        files.fsync_folder(folder)
