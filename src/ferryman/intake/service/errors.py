"""Errors by which a consumer's work can fail, each with its own consequence (see the table in ``workers``)."""

from __future__ import annotations

from ferryman.errors import FerrymanError, PermanentError


class CorruptSubmission(PermanentError):
    """A submission is inconsistent: its manifest, a digest, a container. Trying again is useless."""


class TryLater(FerrymanError):
    """The work cannot be done now: the job stays in its state, unlocked, and is tried again."""

    def __init__(self, why: str, after_s: float = 1.0) -> None:
        super().__init__(why, after_s)
        self.why, self.after_s = why, after_s

    def __str__(self) -> str:
        return self.why


class SlowHost(TryLater):
    """The work involves a slow host: the job waits for the threads for slow hosts."""

    def __init__(self, host: str) -> None:
        super().__init__(f"{host} is slow")
        self.host = host

    def __reduce__(self) -> tuple[type[SlowHost], tuple[str]]:
        return type(self), (self.host,)


class StopRequested(FerrymanError):
    """The consumers are to stop: unfinished work is released unchanged, and done again by the next process."""


class TurnFailed(FerrymanError):
    """A turn of the plan ended in an unforeseen error, which is chained; the plan's state is opened again.

    Attributes:
        jobs: the jobs that shared the turn. If there are several, any of them may be to blame; a single one has failed.
    """

    def __init__(self, jobs: list[str], why: str) -> None:
        super().__init__(jobs, why)
        self.jobs, self.why = jobs, why

    def __str__(self) -> str:
        if len(self.jobs) == 1:
            return f"{self.jobs[0]}: failed in Processing: {self.why}"
        return f"a turn of {len(self.jobs)} jobs: {self.why}. Each gets a turn of its own until the cause is found"


class ChildDied(FerrymanError):
    """A child process died while it was doing its work. ``how``: the signal, or the exit code."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how

    def __str__(self) -> str:
        return f"the child process ended: {self.how}"
