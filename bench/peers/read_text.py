"""Read files with one program, and print what came out as lines of JSON, for ``bench.text``.

    python read_text.py ferryman|markitdown|unstructured FOLDER

Each line has the file's name, the text ("" if there is none), the error, the seconds, and by how many MB the process
had to grow. The first file is read once before, so that the libraries are loaded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["SCARF_NO_ANALYTICS"] = os.environ["DO_NOT_TRACK"] = "true"  # read by unstructured

CUT_CHARACTERS = 300


def ferryman() -> Callable[[Path], str]:
    from ferryman import steps
    from ferryman.document import Document

    extract = steps.extract_text(languages=None)

    def read(path: Path) -> str:
        found = extract(Document(path.name, raw=path.read_bytes()))
        documents = found if isinstance(found, list) else [found]
        return "\n".join((doc.raw or b"").decode() for doc in documents)

    return read


def markitdown() -> Callable[[Path], str]:
    from markitdown import MarkItDown

    converter = MarkItDown()
    return lambda path: converter.convert(str(path)).text_content


def unstructured() -> Callable[[Path], str]:
    import spacy

    blank = spacy.blank("en")
    blank.add_pipe("sentencizer")
    # It tells titles from sentences by a model that it downloads; the text does not depend on it.
    spacy.load = lambda *_, **__: blank
    from unstructured.partition.auto import partition

    return lambda path: "\n".join(element.text for element in partition(filename=str(path), strategy="fast"))


def read_all(read: Callable[[Path], str], folder: Path, pid: int) -> None:
    """Print a line for each file.

    Args:
        pid: the process that reads, of which the memory counts.
    """
    paths = sorted(folder.iterdir())
    try_read(read, paths[0])
    for path in paths:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the peak
        before, began = memory_kb(pid, "VmRSS"), time.perf_counter()
        text, error = try_read(read, path)
        seconds, grown = time.perf_counter() - began, max(0, memory_kb(pid, "VmHWM") - before)
        line = {"name": path.name, "text": text, "error": error, "seconds": seconds, "mb": grown / 1024}
        print(json.dumps(line), flush=True)


def try_read(read: Callable[[Path], str], path: Path) -> tuple[str, str]:
    """Return the text, and the error."""
    try:
        return read(path), ""
    except Exception as e:
        return "", f"{type(e).__name__}: {e}"[:CUT_CHARACTERS]


def memory_kb(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    readers = {each.__name__: each for each in (ferryman, markitdown, unstructured)}
    read_all(readers[sys.argv[1]](), Path(sys.argv[2]), os.getpid())
