"""How a consumer's work ends, if not well. What happens next, tells them apart."""

from __future__ import annotations

from ferryman.errors import FerrymanError, PermanentError


class Corrupt(PermanentError):
    """What was submitted is not what it says it is: a manifest, a digest, a container. It will not get better."""


class Later(FerrymanError):
    """Not now: the job stays where it is, held by this consumer, and is tried again."""

    def __init__(self, why: str, after_s: float = 1.0) -> None:
        super().__init__(why, after_s)
        self.why, self.after_s = why, after_s

    def __str__(self) -> str:
        return self.why


class Stopping(FerrymanError):
    """The consumers are told to stop: what is at work is given back as it is, and done again by the next."""


class ChildDied(FerrymanError):
    """A child process ended over its work. ``how``: the signal, or the exit code."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how

    def __str__(self) -> str:
        return f"the child process ended: {self.how}"
