"""How things fail, grouped by what Ferryman does next.

::

    FerrymanError
    ├── Dropped            a step lets its document go on purpose: DROPPED, with the reason
    ├── DeliveryError      about one document; two kinds are about a whole step, source or destination
    │   ├── TransientError try again later; from a destination: nothing took effect
    │   │   └── Unavailable   all of it is away for now: wait, no attempt is spent
    │   └── PermanentError never try this again as it is
    │       ├── BadDocument   the document itself cannot be read or parsed: ERROR_DOC
    │       │   └── Unsupported  it is of a kind that nothing here reads: a source may skip it
    │       └── Misconfigured all of it is wrong until somebody fixes it: stop there, no attempt is spent
    ├── UsageError         for you to fix, nothing was done: exit 2
    │   ├── PlanError      the plan is not one that can run
    │   └── PlanChanged    the plan's structure is not what it was under this version
    ├── StateFolderError         this state directory must not be touched: exit 1
    │   ├── StateHeld      another driver holds it
    │   ├── StateDamaged   a file of it is missing or is not what was written
    │   │   └── QueueDamaged   the same of a queue
    │   ├── StateForeign   it belongs to another plan or to a newer Ferryman
    │   ├── StateLost      another driver took it over while we held it
    │   └── QueueReplaced  the queue was deleted, and perhaps made again under its name
    └── EngineError        Spark or Ferryman itself failed: exit 1
        ├── ReaderHeld     another process holds a reader of a queue
        └── WorkerDied     the process of a task ended in the middle of it
            └── OutOfMemory  it would have: an allocation of it failed

Every message says what happened, to what, and what to do. All of them survive pickling.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, Final

from ferryman import limits

_DOUBLED_STOP: Final = re.compile(r"(?<=[^\s./])\.\.(?=\s+[A-Z`]|\Z)")


def single_stops(text: str) -> str:
    """Remove doubled full stops between sentences and at the end: a message quotes others, which may end in one."""
    return _DOUBLED_STOP.sub(".", text)


class FerrymanError(Exception):
    """Base of everything that Ferryman raises on purpose. ``exit_code``: exit code of the command line."""

    exit_code = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*(single_stops(each) if isinstance(each, str) else each for each in args))


class Dropped(FerrymanError):
    """Raise this in a step to drop a document on purpose: ``raise Dropped("draft")``."""


class DeliveryError(FerrymanError):
    """A failure with a reason. ``universal``: it is not about this document, since every other one would fail alike."""

    universal: ClassVar[bool] = False

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why: str = self.args[0]

    def __str__(self) -> str:
        return str(self.why)  # a step may give anything


class TransientError(DeliveryError):
    """Raised for an error after which trying again later may help. From a destination it also means that nothing took
    effect."""


class Unavailable(TransientError):
    """Raised if the whole step, source or destination is unavailable for now. It is called again later; no document
    spends an attempt.

    Args:
        scope: name of the part that is unavailable, such as one host of many; documents that do not need it continue.
            Messages show it. For a destination it is ignored: the whole destination counts as unavailable.
        wait_s: seconds after which it may be asked again, such as those of ``Retry-After``; 0: it does not say. A
            source whose listing raises it is not listed sooner by this run, at most for ``limits.RETRY_AFTER_MAX_S``.
    """

    universal = True

    def __init__(self, why: str = "", *, scope: str = "", wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.scope = scope
        self.wait_s = wait_s


class PermanentError(DeliveryError):
    """Raised for a failure that will be the same every time: do not try again until something changes."""


class BadDocument(PermanentError):
    """Raised if the document itself cannot be read or parsed. It ends as ERROR_DOC until it changes or an operator
    forces it."""


class Unsupported(BadDocument):
    """Raised for a document of a kind that the step does not read, such as a picture where text is wanted. It is
    rejected, or dropped if its source has ``unsupported="skip"``."""


class Misconfigured(PermanentError):
    """Raised if the whole step, source or destination cannot work until somebody fixes it (a wrong password, a missing
    index). It is stopped for this run and reported; no document spends an attempt."""

    universal = True


class UsageError(FerrymanError):
    """A mistake for the user to fix; nothing was changed."""

    exit_code = 2


class PlanError(UsageError):
    """The plan cannot run. ``findings``: every reason, one text each, naming the node and the remedy."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__(findings)
        self.findings = findings

    def __str__(self) -> str:
        return "\n".join(map(single_stops, self.findings))


class PlanChanged(UsageError):
    """The plan has changed since it last ran under this version; ``differences`` lists how, one line each."""

    def __init__(self, plan: str, version: int, differences: list[str]) -> None:
        super().__init__(plan, version, differences)
        self.plan, self.version, self.differences = plan, version, differences

    def __str__(self) -> str:
        return (
            f"plan {self.plan} version {self.version} has changed since it ran: {'; '.join(self.differences)}. Nothing "
            "was touched: existing documents would not be reprocessed. Give the plan a higher version and run it with "
            f"--from-version {self.version}, which migrates the state; or run it with --accept-changes."
        )


class StateFolderError(FerrymanError):
    """The state directory must not be touched as it is; nothing was overwritten."""


class StateHeld(StateFolderError):
    """Another driver holds the state."""

    def __init__(self, path: str, host: str, pid: int, since: str) -> None:
        super().__init__(path, host, pid, since)
        self.path, self.host, self.pid, self.since = path, host, pid, since

    def __str__(self) -> str:
        return (
            f"{self.path} is held by process {self.pid} on {self.host} since {self.since}. "
            "Wait until it ends, or stop it; "
            + (
                "one that was killed is found out after a minute, or at once with --take-over."
                if "://" in self.path
                else "a killed process releases it automatically."
            )
        )


_RESTORE: Final = "Restore this file from a copy"


class StateDamaged(StateFolderError):
    """A file of the state is missing or is not what Ferryman wrote. ``remedy``: what to do with
    it, unless it has to be restored."""

    def __init__(self, path: str, what: str, remedy: str = "") -> None:
        super().__init__(path, what, remedy)
        self.path, self.what, self.remedy = path, what, remedy

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.what}. Nothing was overwritten. {self.remedy or _RESTORE}; "
            "`ferryman fsck PLAN` lists everything that is damaged."
        )


class StateForeign(StateFolderError):
    """The state belongs to another plan, or to a newer Ferryman."""


class StateLost(StateFolderError):
    """Another driver took the state over (a higher epoch was found); this one stops at once."""


class QueueDamaged(StateDamaged):
    """A file of a queue is missing or is not what Ferryman wrote."""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}. Nothing was overwritten. {self.remedy or _RESTORE}."


class QueueReplaced(StateFolderError):
    """The opened queue was deleted. Now there is none of its name, or another one, whose id is ``now``."""

    def __init__(self, path: str, known: str, now: str | None) -> None:
        super().__init__(path, known, now)
        self.path, self.known, self.now = path, known, now

    def __str__(self) -> str:
        again = f" and made again: it is {self.now} now" if self.now else ""
        return (
            f"{self.path}: the queue that was opened here, {self.known}, was deleted{again}. Nothing was read or "
            "appended. Open it again to begin with the queue of that name as it is now."
        )


class EngineError(FerrymanError):
    """Spark failed, or Ferryman did."""


class ReaderHeld(EngineError):
    """Another process holds a reader of a queue, and does not release it."""

    def __init__(self, path: str, reader: str, who: str) -> None:
        super().__init__(path, reader, who)
        self.path, self.reader, self.who = path, reader, who

    def __str__(self) -> str:
        return (
            f"{self.path}: the reader {self.reader} is held by {self.who}. Wait until it is done with it. One that was "
            "stopped holds it until it goes on or is killed."
        )


class WorkerDied(EngineError):
    """The process of a task died: it was killed from outside, ran out of memory, or was killed by what it ran."""


class NoChild(WorkerDied):
    """Raised if there is no child process to do the work, which is not to blame. The work itself never raises it."""


class OutOfMemory(WorkerDied):
    """A task ended because an allocation failed; the document it was processing is as suspicious as if its process had
    died."""


def describe(error: BaseException) -> str:
    """Describe an error raised by foreign code, its class first, as text that can be stored."""
    return f"{class_name(error)}: {plain_text(error)}"


def class_name(value: object) -> str:
    """Return the name of a foreign object's class, even if the class overrides how its name is read."""
    return plain_text(vars(type)["__name__"].__get__(type(value)))


def message_of(error: BaseException) -> str:
    """Return an error's text for a message; for errors that are not Ferryman's the class comes first."""
    return single_stops(plain_text(error)) if isinstance(error, FerrymanError) else describe(error)


class Interrupted(KeyboardInterrupt):
    """Raised because a signal asks this process to stop, or the current work is abandoned; the code being called is not
    to blame.

    A ``KeyboardInterrupt`` raised by foreign code is an error of that code.
    """


def unless_interrupt(error: BaseException) -> BaseException:
    """Return an error raised by foreign code. This includes ``sys.exit()`` and the panic of a Rust extension (which is
    not an Exception), but not signals.

    Raises:
        Interrupted: the error itself, since it is about this process and not about the called code.
    """
    if issubclass(type(error), Interrupted):
        raise error
    return inspectable(error)


def inspectable(error: BaseException) -> BaseException:
    """Return an error raised by foreign code; if its class or traceback cannot be read, a replacement."""
    try:
        _ = error.__class__, error.__traceback__
    except Exception:
        name, trace = class_name(error), vars(BaseException)["__traceback__"].__get__(error)
        return RuntimeError(f"{name}, of which nothing can be asked").with_traceback(trace)
    return error


def as_exception(error: BaseException) -> Exception:
    """Return an error raised by foreign code as an exception that does not end our process, as ``sys.exit()`` would."""
    error = inspectable(error)
    return error if isinstance(error, Exception) else RuntimeError(f"it raised {describe(error)}")


def hide_secrets(text: str, secrets: Iterable[str | None], mark: str = "…") -> str:
    """Return a text in which each secret is replaced by ``mark``."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, mark)
    return text


def plain_text(reason: object, limit: int = limits.MESSAGE_CHARACTERS) -> str:
    """Convert a reason given by foreign code to text that can be stored, whatever object it is.

    Lone surrogates are escaped, and the middle of a long text is left out.
    """
    if reason is None:
        return ""
    try:
        text = str(reason)
    except BaseException as e:
        unless_interrupt(e)
        text = f"(a {class_name(reason)} that cannot say why)"
    return str.encode(shortened(text, limit), "utf-8", "backslashreplace").decode()


def safe_repr(value: object) -> str:
    """Return the repr of a foreign object for a message, or its class if ``repr`` raises."""
    try:
        return plain_text(repr(value))
    except BaseException as e:
        unless_interrupt(e)
        return f"a {type(value).__name__}"


def shortened(text: str, limit: int) -> str:
    """Shorten a text of more than ``limit`` characters: its middle is replaced by the number of missing characters."""
    if len(text) <= limit:
        return text
    end = limit // 4
    return f"{text[: limit - end]} … ({limits.format_count(len(text) - limit)} characters left out) … {text[-end:]}"
