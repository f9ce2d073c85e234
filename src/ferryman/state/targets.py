"""Record of the targets that a state's destinations write to: their identities, and when they were verified."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ferryman import crash
from ferryman.state.state import TARGETS, VERIFIED
from ferryman.storage import files
from ferryman.storage.files import StatePath


class Target(msgspec.Struct, omit_defaults=True):
    """The target of a destination.

    Attributes:
        id: its identity, see ``Destination.identity``, when the destination was first used, or last verified.
        found: the identity that the last run found in its place; None: the same, or it could not be asked. "": there
            was no target.
        since: when it was found first, ISO 8601 in UTC.
    """

    id: str
    found: str | None = None
    since: str = ""

    def describe(self) -> str:
        """Return what has become of a target in whose place another identity, or none, was found."""
        return "was recreated, or another one has taken its place" if self.found else "is not there any more"


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
        target: identity of the target when it was clean; None: unknown.
    """

    clean: PastVerification | None = None
    failed: PastVerification | None = None
    target: str | None = None


def load_targets(root: StatePath) -> dict[str, Target]:
    """Return destination -> its target. One that was verified since is the one that was verified.

    Raises:
        StateDamaged: a file is damaged.
    """
    path = root / TARGETS
    targets = msgspec.convert(files.unseal(path), dict[str, Target]) if files.exists(path) else {}
    for name, verified in load_verified(root).items():
        if verified.target is not None and name in targets:
            is_same = targets[name].found == verified.target
            targets[name] = (
                Target(verified.target) if is_same else msgspec.structs.replace(targets[name], id=verified.target)
            )
    return targets


def save_targets(root: StatePath, targets: Mapping[str, Target]) -> None:
    """Store the targets; for the state's driver."""
    files.replace(root / TARGETS, files.seal({name: msgspec.to_builtins(each) for name, each in targets.items()}))
    crash.point("targets.recorded")


def load_verified(root: StatePath) -> dict[str, VerifiedDestination]:
    """Return destination -> its verifications.

    Raises:
        StateDamaged: their file is damaged.
    """
    path = root / VERIFIED
    return msgspec.convert(files.unseal(path), dict[str, VerifiedDestination]) if files.exists(path) else {}


def save_verified(root: StatePath, verified: Mapping[str, VerifiedDestination]) -> None:
    """Store the verifications; for ``ferryman verify``, beside a driver."""
    files.replace(root / VERIFIED, files.seal({name: msgspec.to_builtins(each) for name, each in verified.items()}))
    crash.point("verified.recorded")
