"""What a run tells while it runs: progress for people, log lines."""

from ferryman.observe.progress import Forwarding, Observer, Silent, one_line
from ferryman.observe.watching import watching

__all__ = ["Forwarding", "Observer", "Silent", "one_line", "watching"]
