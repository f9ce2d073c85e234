"""Why a scan has a document processed."""

from __future__ import annotations

import enum


class Reason(enum.StrEnum):
    """Why a document is processed; as it stands in the files of a scan."""

    NEW = "new"
    CHANGED = "changed"
    LOOK = "look"
    """Its content was not read while listing: the worker that reads it decides whether it has changed."""
    RETRY = "retry"
    """A failed step is due."""
    FORCED = "forced"
    """`retry --force`, or a step has asked for it."""
    AGAIN = "again"
    """Its source has every document processed in every run (``detect="none"``)."""
    GONE = "gone"
    """It is not listed any more."""
    UNCHANGED = "unchanged"
    """It is not processed; a preview was asked for it by its id."""
