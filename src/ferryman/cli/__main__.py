"""``python -m ferryman.cli``, where the ``ferryman`` command is not on the path."""

from ferryman.cli import main

main()
