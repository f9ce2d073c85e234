"""Write every picture, and every block of a page that is generated from the code.

.venv/bin/python -m scripts.docs            writes them
.venv/bin/python -m scripts.docs --check    lists those that are outdated, and exits with 1
"""

from __future__ import annotations

import sys

from scripts.docs.blocks import stale, write


def main() -> int:
    if "--check" in sys.argv[1:]:
        old = stale()
        print(*old, sep="\n")
        return 1 if old else 0
    for path in write():
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
