"""Files to scan, what a run over them delivers, and a step that records its calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferryman.document import Document
from ferryman.sources import Files
from tests.support.plan_world import PlanWorld

LONG_AGO = time.time() - 3600


def write(path: Path, text: str, mtime: float = LONG_AGO) -> None:
    """A file that has not changed for long, whatever is in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (mtime, mtime))


def over_files(place: Path, **options: Any) -> tuple[PlanWorld, Path]:
    folder = place / "corpus"
    for name in "abcd":
        write(folder / name, f"{name} one")
    trial = PlanWorld(place).build(source=Files(str(folder), **options))
    trial.run()
    assert trial.out().counted() == dict.fromkeys("abcd", 1)
    trial.out().forget()
    return trial, folder


def seen(trial: PlanWorld) -> dict[str, int]:
    """What the next run delivers."""
    trial.out().forget()
    trial.run()
    return dict(trial.out().counted())


def counting(path: Path, name: str) -> Callable[[Document], Document]:
    """A step that writes down each call, whoever makes it."""

    def step(doc: Document) -> Document:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{name} {doc.id}\n".encode())
        os.close(fd)
        return doc

    step.__name__ = name
    return step
