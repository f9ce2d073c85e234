"""Each store of vectors keeps the promises of the port."""

from __future__ import annotations

from pathlib import Path

from ferryman.destinations.vectors import Declaration, VectorDestination
from ferryman.testing.vectors import MemoryVectors, VectorSuite


class TestMemoryVectors(VectorSuite):
    def destination(self, folder: Path, vectors: Declaration) -> VectorDestination:
        return MemoryVectors(str(folder), vectors)
