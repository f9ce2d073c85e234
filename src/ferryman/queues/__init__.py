"""Durable queues between plans and programs (docs/how-to/use-a-queue.md)."""

from ferryman.queues.message import Message
from ferryman.queues.queue import Queue
from ferryman.queues.tailer import Tailer

__all__ = ["Message", "Queue", "Tailer"]
