"""A destination in Solr."""

from ferryman.destinations.solr.destination import Solr

__all__ = ["Solr"]
