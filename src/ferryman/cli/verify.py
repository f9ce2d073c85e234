"""``ferryman verify``: compares destinations with the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ferryman.cli.options import (
    DestinationFilter,
    Json,
    PlanSpec,
    StateDir,
    Verbose,
    Why,
    bounded,
    load_with_state,
    option,
)
from ferryman.cli.terminal import next_command, print_json, print_line, print_note, print_table
from ferryman.limits import format_count, plural

if TYPE_CHECKING:
    from ferryman.engine.target_look import Verified
    from ferryman.verification import Verification

LISTED = 20
"""Differences printed of each target, without -v."""


def verify(
    plan: PlanSpec,
    destination: DestinationFilter = None,
    sample: Annotated[
        int | None, option("--sample", "N", "Compare N documents drawn at random, not all.", min=1, callback=bounded)
    ] = None,
    since: Annotated[
        int,
        typer.Option(
            "--since", metavar="WAVE", min=0, callback=bounded, help="Only documents delivered in this wave or later."
        ),
    ] = 0,
    repair: Annotated[
        bool, typer.Option("--repair", help="Make what is missing or was changed due again; the next run sends it.")
    ] = False,
    delete_extra: Annotated[
        bool, typer.Option("--delete-extra", help="Have the next run delete what should not be there.")
    ] = False,
    allow_deletes: Annotated[
        bool, typer.Option("--allow-deletes", help="Delete even more than half of what a destination holds.")
    ] = False,
    why: Why = "",
    state: StateDir = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Look whether everything that was delivered is at its destinations.

    Reads what each destination holds, and compares it with the ledger: missing is what is not there any more; changed,
    what somebody else has written over, or changed by hand; extra, what was deleted, or what the ledger does not know
    although this plan wrote it. Records of others are left alone. Works beside a run, starts no Spark, and changes
    nothing at a destination.

    --sample and --since compare a part, and do not find what is extra. A webhook cannot be read back: that is said.
    Lists 20 differences of each destination; -v or --json lists them all.

    Exit codes: 0 all is there; 3 something differs; 4 a destination could not be read, or none can be.
    """
    from ferryman import verification

    loaded, root = load_with_state(plan, state)
    found = verification.verify(
        loaded,
        state=root.parent,
        destination=destination,
        sample=sample,
        since=since,
        repair=repair,
        delete_extra=delete_extra,
        allow_deletes=allow_deletes,
        why=why,
    )
    if json:
        print_json(as_json(found))
    else:
        for target in found.targets:
            print_target(target, verbose=verbose)
        print_repair(found, plan, state, asked=repair or delete_extra)
    raise typer.Exit(found.exit)


def as_json(found: Verification) -> dict[str, object]:
    return {
        "exit": found.exit,
        "targets": [
            {
                "destinations": list(target.destinations),
                "target": target.target,
                "compared": target.counts is not None,
                "why": target.why,
                "sampled": target.sampled,
                "forgets": target.forgets,
                "wave": target.wave,
                **(target.counts._asdict() if target.counts is not None else {}),
                "differences": [each._asdict() for each in target.differences],
            }
            for target in found.targets
        ],
        "repaired": found.repaired,
        "queued": found.queued,
        "unrepairable": [{**each._asdict(), "reason": reason} for each, reason in found.unrepairable],
    }


def print_target(target: Verified, *, verbose: bool) -> None:
    name = f"{', '.join(target.destinations)} ({target.target})"
    counts = target.counts
    if counts is None:
        print_line(f"{name}: not compared: {target.why}")
        return
    parts = [f"{format_count(number)} {kind}" for kind, number in _kinds(target) if number]
    compared = plural(counts.expected, "delivery", "deliveries")
    print_line(f"{name}: {compared} compared, {', '.join(parts) or 'all of them are there'}")
    if target.forgets and counts.missing:
        print_line(
            f"  {format_count(counts.missing)} are no longer there. Old messages were trimmed; whether these were "
            "among them is not known."
        )
    if target.sampled and not target.differing and counts.expected:
        share = 100 * (1 - 0.01 ** (1 / counts.expected))
        print_line(f"  A sample: with 99 % certainty fewer than {share:.2g} % of them are missing or changed.")
    if counts.in_flight:
        print_line(f"  {format_count(counts.in_flight)} more are being sent or in doubt, and were not compared.")
    if counts.unknown:
        print_line(f"  The content of {format_count(counts.unknown)} could not be compared, only their hashes.")
    if counts.others:
        print_line(f"  {plural(counts.others, 'record', 'records')} of others: left alone.")
    shown = target.differences if verbose else target.differences[:LISTED]
    if shown:
        print_table(("differs", "document", "what"), [(each.kind, each.document, each.why) for each in shown])
    if len(shown) < target.differing:
        print_note(f"These are {len(shown)} of {format_count(target.differing)}; -v or --json lists more.")


def _kinds(target: Verified) -> list[tuple[str, int]]:
    assert target.counts is not None
    missing = 0 if target.forgets else target.counts.missing
    return [("missing", missing), ("changed", target.counts.changed), ("extra", target.counts.extra)]


def print_repair(found: Verification, plan: str, state: str | None, *, asked: bool) -> None:
    again = next_command("run", plan, state=state)
    for each, reason in found.unrepairable[:LISTED]:
        print_line(f"{each.document} cannot be repaired at {each.destination}: {reason}.")
    if found.queued:
        print_line(f"Queued: the current run, or the next one, will repair it: {again}")
    elif found.repaired:
        print_line(f"{format_count(found.repaired)} due now. Next: {again}")
        if any(target.differing > len(target.differences) for target in found.targets):
            print_note("More differ than are repaired at once: after that run, repair again.")
    elif not asked:
        if any(counts.missing or counts.changed for target in found.targets if (counts := target.counts)):
            print_line(f"To send them again: {next_command('verify', plan, '--repair', state=state)}")
        if any(target.extra for target in found.targets):
            print_line(f"To delete what is extra: {next_command('verify', plan, '--delete-extra', state=state)}")
