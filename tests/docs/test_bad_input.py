"""A bad document harms only itself (I8). That the page shows the real messages is tested with all blocks."""

from __future__ import annotations

from scripts.docs import bad_input

CASES = (*bad_input.LISTED, *bad_input.READ, *bad_input.STEPS, *bad_input.SENT)


def test_every_bad_file_has_an_end_and_the_run_goes_on() -> None:
    """Each file ends with a status of its own; none stops the run, and the good ones are delivered."""
    outcomes, summary = bad_input.outcomes()

    assert outcomes.keys() == {case.id for case in CASES}
    assert summary.delivered == sum(status == "INDEXED" for status, _ in outcomes.values())
    assert summary.owed == 0


def test_messages_are_for_people() -> None:
    """A refusal names what is bad in one line, and is no stack trace."""
    outcomes, _ = bad_input.outcomes()
    for status, message in outcomes.values():
        assert bool(message) == (status != "INDEXED")
        assert "\n" not in message
        assert "Traceback" not in message
