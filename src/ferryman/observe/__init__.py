"""What a run tells while it runs: progress for people, log lines."""

from ferryman.observe.progress import Observer, Silent, one_line, watching

__all__ = ["Observer", "Silent", "one_line", "watching"]
