"""Parts of a page that are closed until a reader opens them, on the site and on code hosts."""

from __future__ import annotations


def fold(summary: str, body: str) -> str:
    """Return a body of Markdown below a line that opens and closes it."""
    return f'<details markdown="1">\n<summary>{summary}</summary>\n\n{body}\n\n</details>'
