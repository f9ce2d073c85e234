"""Checkpoints of Delta logs: delta-rs folds a log into one file, in a scratch folder of this machine.

So it never looks at what a kill or another program has left in the log itself, and a checkpoint gets its name there
when it is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ferryman.errors import EngineError
from ferryman.storage.files import StatePath, read
from ferryman.storage.scratch import scratch_folder


def folded(parts: Iterable[StatePath], version: int) -> bytes:
    """The content of a checkpoint.

    Args:
        parts: entries of the log up to this version, all of them, or a checkpoint and all after it.

    Raises:
        FileNotFoundError: one is not there.
        EngineError: delta-rs cannot fold them.
    """
    from deltalake import DeltaTable  # loaded where it is needed: that takes longer than most questions
    from deltalake.exceptions import DeltaError

    with scratch_folder() as folder:
        log = Path(folder, "_delta_log")
        log.mkdir()
        for part in parts:
            (log / part.name).write_bytes(read(part))
        try:
            DeltaTable(folder, version=version).create_checkpoint()
        except (DeltaError, OSError) as e:
            raise EngineError(f"the checkpoint failed: {one_line(e)}") from e
        return (log / f"{version:020d}.checkpoint.parquet").read_bytes()


def one_line(error: Exception) -> str:
    """What delta-rs says, without its colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[\d+m", "", str(error)).split())
