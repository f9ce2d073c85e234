"""Record of the targets that a state's destinations write to: their identities, whether they are as the state knows
them, and when they were verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from ferryman import crash
from ferryman.state.state import TARGETS, VERIFIED
from ferryman.storage import files
from ferryman.storage.files import StatePath

_T = TypeVar("_T")


class Probe(msgspec.Struct, array_like=True):
    """One of the last deliveries to a target."""

    document: str
    hash: str
    is_delete: bool = False


AHEAD: Final = "ahead"
BEHIND: Final = "behind"


class Target(msgspec.Struct, omit_defaults=True):
    """The target of a destination.

    Attributes:
        id: its identity, see ``Destination.identity``, when the destination was first used, or last verified; "": it
            has none.
        found: the identity that the last run found in its place; None: the same, or it could not be asked. "": there
            was no target.
        since: when it was found first, ISO 8601 in UTC.
        trouble: ``ahead``: it has deliveries of this state that the state does not know. ``behind``: it lacks some of
            the last ones that the state knows. "": neither was found since it was last verified or adopted.
        noticed: when that was found first, ISO 8601 in UTC.
        highest: highest sequence of this state that it had; 0: unknown.
        wave: last wave whose deliveries are among ``probes``, and when it had ``highest``.
        probes: some of the last deliveries to it, for a look whether it is an older copy.
    """

    id: str = ""
    found: str | None = None
    since: str = ""
    trouble: str = ""
    noticed: str = ""
    highest: int = 0
    wave: int = 0
    probes: list[Probe] = []

    @property
    def needs_verification(self) -> bool:
        """Return whether it may differ from what was delivered."""
        return self.found is not None or bool(self.trouble)

    @property
    def noticed_first(self) -> str:
        """Return when the first difference was found."""
        return min(filter(None, (self.since if self.found is not None else "", self.noticed)), default="")

    def describe(self) -> str:
        """Return what has become of a target that needs a verification."""
        if self.found is not None:
            if self.found:
                return "was recreated, or another one has taken its place"
            return "is not there any more, or has lost the mark by which it is recognised"
        if self.trouble == AHEAD:
            return "has deliveries that this state does not know: the state was put back from an older copy"
        return "lacks some of what was delivered last, as if it was emptied or put back from an older copy"


class PastVerification(msgspec.Struct, omit_defaults=True):
    """A verification of a destination.

    Attributes:
        wave: everything that was delivered up to this wave was compared.
        at: when, ISO 8601 in UTC.
        compared: number of deliveries.
        differing: number of them that differed.
    """

    wave: int
    at: str
    compared: int
    differing: int = 0


class VerifiedDestination(msgspec.Struct, omit_defaults=True):
    """Verifications of a destination.

    Attributes:
        clean: the last one that compared everything and found all of it.
        failed: the last one that found differences.
        sampled: the last one of a sample that found all of it.
        target: identity of the target when it was clean, or accepted as a new one; None: unknown.
        highest: ``Target.highest`` when everything was compared last and something differed, or the target was accepted
            as a new one: it may have less since.
        settled: ``Target.noticed`` of the trouble that was settled by a clean verification, by ``ferryman adopt``, or
            by ``ferryman retry --force``.
        begins_after: wave after which the target was accepted as a new one: of a log, what was delivered before is not
            expected in it.
    """

    clean: PastVerification | None = None
    failed: PastVerification | None = None
    sampled: PastVerification | None = None
    target: str | None = None
    highest: int = 0
    settled: str = ""
    begins_after: int = 0


def load_targets(root: StatePath) -> dict[str, Target]:
    """Return destination -> its target. One that was verified since is the one that was verified.

    Raises:
        StateDamaged: a file is damaged.
    """
    targets = _load(root / TARGETS, Target)
    for name, verified in load_verified(root).items():
        if (target := targets.get(name)) is None:
            continue
        if verified.target is not None:
            if target.found == verified.target:
                target.found, target.since = None, ""
            if target.id != verified.target:
                target.id, target.probes = verified.target, []  # what the one before had may not be in it
        if target.highest == verified.highest:
            target.highest = 0
        if target.noticed and target.noticed == verified.settled:
            target.trouble = target.noticed = ""
            target.highest = target.wave = 0  # as it is now
            target.probes = []
    return targets


def _load(path: StatePath, kind: type[_T]) -> dict[str, _T]:
    """Return destination -> its record; {} of a file that another version has written in another form: what is in it is
    found again.

    Raises:
        StateDamaged: it is damaged.
    """
    if not files.exists(path):
        return {}
    try:
        return msgspec.convert(files.unseal(path), dict[str, kind])  # type: ignore[valid-type]
    except msgspec.ValidationError:
        return {}


def save_targets(root: StatePath, targets: Mapping[str, Target]) -> None:
    """Store the targets; for the state's driver."""
    files.replace(root / TARGETS, files.seal({name: msgspec.to_builtins(each) for name, each in targets.items()}))
    crash.point("targets.recorded")


def load_verified(root: StatePath) -> dict[str, VerifiedDestination]:
    """Return destination -> its verifications.

    Raises:
        StateDamaged: their file is damaged.
    """
    return _load(root / VERIFIED, VerifiedDestination)


def settle_targets(root: StatePath, accepted: Mapping[str, str | None], wave: int = 0) -> None:
    """Record that what was found about targets is settled: what may be missing in them is pending.

    Args:
        accepted: destination -> identity of the target that is accepted in place of the one before; None: the same.
        wave: last wave that was committed before; 0: what was delivered before is expected in it.

    Raises:
        StateDamaged: a file is damaged.
    """
    targets, verified = load_targets(root), load_verified(root)
    for name, identity in accepted.items():
        target, kept = targets.get(name, Target()), verified.get(name, VerifiedDestination())
        kept.settled = target.noticed or kept.settled
        if identity is not None:
            kept.target, kept.highest = identity, target.highest
        kept.begins_after = wave or kept.begins_after
        if target.noticed or identity is not None or wave:
            verified[name] = kept
    save_verified(root, verified)


def save_verified(root: StatePath, verified: Mapping[str, VerifiedDestination]) -> None:
    """Store the verifications; for ``ferryman verify``, beside a driver."""
    files.replace(root / VERIFIED, files.seal({name: msgspec.to_builtins(each) for name, each in verified.items()}))
    crash.point("verified.recorded")
