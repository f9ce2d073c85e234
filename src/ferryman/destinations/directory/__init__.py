"""A destination in a folder: a file a document."""

from ferryman.destinations.directory.destination import Directory

__all__ = ["Directory"]
