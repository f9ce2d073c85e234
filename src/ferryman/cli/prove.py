"""``ferryman prove``: breaks things while a plan runs, and compares what arrives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ferryman.cli.options import Json, Verbose, argument, option
from ferryman.cli.terminal import print_json, print_line, print_note, print_table, program_name
from ferryman.errors import UsageError

if TYPE_CHECKING:
    from ferryman.plan import Plan

LIST = "list"
"""Value of --break that lists the rules."""


def prove(
    plan: Annotated[
        str | None,
        argument("[PLAN]", "plan.py, plan.py:name (one of several), or package.module:name. Default: a built-in plan."),
    ] = None,
    documents: Annotated[
        int, typer.Option("--documents", metavar="N", min=1, help="Documents that are drawn of each source.")
    ] = 200,
    rounds: Annotated[
        int | None,
        option(
            "--rounds",
            "N",
            "Rounds to play. Default: one for each kind of fault at each durable write and node.",
            min=1,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed draws the same rounds.")] = 0,
    only: Annotated[list[str] | None, option("--only", "KIND", "Only this kind of fault. Repeatable.")] = None,
    fault: Annotated[str, option("--fault", "FAULT", "Only this round, to see it again.")] = "",
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Also kill Spark's processes.")] = True,
    scratch: Annotated[
        bool,
        typer.Option(
            "--scratch", help="On PostgreSQL, write to tables of the proof's own, which are dropped in the end."
        ),
    ] = False,
    allow_steps: Annotated[
        list[str] | None, option("--allow-steps", "NAME", "This step may call its service. Repeatable.")
    ] = None,
    break_rule: Annotated[
        str, option("--break", "RULE", "Break this rule of the protocol: the proof must find it. list: lists them.")
    ] = "",
    html: Annotated[Path | None, option("--html", "FILE", "Write the report to this file, too.")] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Break things while a plan runs, and see whether it keeps its guarantees.

    Draws documents from the plan's sources, and runs the plan on them over and over again. In each round one thing
    fails: the driver is killed at a durable write, a worker dies, a destination hangs, drops the connection or loses
    what it has acknowledged, the disk is full, the clock jumps. Then the plan runs until all is delivered: it must be
    what it delivers without any fault.

    Nothing is written to your destinations: twins stand in their place. --scratch writes to tables of the proof's own
    beside yours. A step that opens a connection is refused, unless --allow-steps names it.

    Only faults that took effect count. Exit codes: 0 proven; 1 a rule was broken, or too few faults took effect; 2 the
    plan cannot be proved like this.
    """
    from ferryman.proof import broken, report
    from ferryman.proof.proof import as_json
    from ferryman.proof.proof import prove as prove_plan

    if break_rule == LIST:
        rules = [(name, rule.broken) for name, rule in broken.RULES.items()]
        if json:
            print_json([{"rule": name, "broken": what} for name, what in rules])
        else:
            print_table(("rule", "what happens when it is broken"), rules)
        return
    if html is not None and not html.absolute().parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {html.absolute().parent}.")
    result = prove_plan(
        _load(plan),
        documents=documents,
        rounds=rounds,
        seed=seed,
        broken=break_rule,
        scratch=scratch,
        allow_steps=allow_steps or (),
        spark=spark,
        kinds=only or (),
        fault=fault,
        observer=print_note if verbose else lambda text: None,
    )
    replay = _replay(plan, documents, seed, allow_steps or [], break_rule, scratch=scratch)
    if html is not None:
        html.write_text(report.as_html(result, replay), "utf-8")
    if json:
        print_json(as_json(result))
    else:
        print_line(report.describe_sample(result))
        print_table(report.HEADINGS, [line.cells for line in report.lines_of(result)])
        for note in report.notes(result, replay):
            print_line(note)
        print_line(report.verdict(result))
    raise typer.Exit(result.exit)


def _load(plan: str | None) -> Plan | None:
    from ferryman.plan.load import load_plan

    return None if plan is None else load_plan(plan)


def _replay(plan: str | None, documents: int, seed: int, allowed: list[str], rule: str, *, scratch: bool) -> str:
    """Return the command that plays one round again, up to the name of its fault."""
    parts = [program_name(), "prove", *([plan] if plan else []), "--documents", str(documents), "--seed", str(seed)]
    parts += [part for name in allowed for part in ("--allow-steps", name)]
    parts += ["--break", rule] if rule else []
    parts += ["--scratch"] if scratch else []
    return " ".join([*parts, "--fault"])
