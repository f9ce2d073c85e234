"""Telling somebody what went wrong: a digest to a URL, by mail, or to a command."""

from ferryman.notify.digest import Digest, Example, Stopped
from ferryman.notify.reporter import Reporter

__all__ = ["Digest", "Example", "Reporter", "Stopped"]
