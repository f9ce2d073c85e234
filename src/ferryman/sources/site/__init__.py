"""Web sites: ``Site`` lists the pages of a host and reads them, at one polite rate."""

from ferryman.sources.site.source import Site

__all__ = ["Site"]
