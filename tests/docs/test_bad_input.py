"""A bad document harms only itself (I8). That the page shows the real messages is tested with all blocks."""

from __future__ import annotations

from scripts.docs import bad_input, bad_rows

CASES = (*bad_input.LISTED, *bad_input.READ, *bad_input.STEPS, *bad_input.SENT)


def test_every_bad_file_has_an_end_and_the_run_goes_on() -> None:
    """Each file ends with a status of its own; none stops the run, and the good ones are delivered."""
    outcomes, summary = bad_input.outcomes()

    assert outcomes.keys() == {case.id for case in CASES}
    assert summary.delivered == sum(status == "INDEXED" for status, _ in outcomes.values())
    assert summary.pending == 0


def test_messages_are_for_people() -> None:
    """A refusal names what is bad in one line, and is no stack trace."""
    outcomes, _ = bad_input.outcomes()
    for status, message in outcomes.values():
        assert bool(message) == (status != "INDEXED")
        assert "\n" not in message
        assert "Traceback" not in message


def test_bad_rows_harm_only_themselves() -> None:
    """One document of each file is refused at most; a file that cannot be read to its end is told once."""
    outcomes, summary = bad_rows.outcomes()

    refused = [id for id, (status, _) in outcomes.items() if status == "ERROR_DOC"]
    for name in bad_rows.ROWS:
        assert sum(id.startswith(name) for id in refused) == 1, name
    assert {status for status, _ in outcomes.values()} == {"INDEXED", "ERROR_DOC"}
    assert summary.exit == 4
    assert len(summary.messages) == len(bad_rows.FILES)
    for text in (*summary.messages, *(message for _, message in outcomes.values())):
        assert "\n" not in text
        assert "Traceback" not in text
