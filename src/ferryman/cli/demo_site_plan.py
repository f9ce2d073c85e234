"""Index a web site into SQLite: each page's text without its navigation.

`ferryman demo --site URL` runs this plan. It is yours: change it and run it again.
"""

from pathlib import Path

from ferryman import Document, Plan
from ferryman.destinations import Sql
from ferryman.sources import Site
from ferryman.steps import main_text

HERE = Path(__file__).parent

SITE = Site(
    "https://docs.example.org/",
    rate="5/s",  # requests to each host
    budget=500,  # pages a run asks for: run it again, and it goes on
)


def keep_pages(doc: Document) -> Document | None:
    """Pages with a text; this plan reads no PDF and Office files (main_text(others=extract_text()) does)."""
    if doc.get("content_type") is None or not doc.text().strip():
        return None
    if doc.get("title") is None:
        doc["title"] = doc["url"]
    return doc


plan = Plan("site", version=1)
pages = plan.source("pages", SITE)
text = pages.step("text", main_text())
text.step("pages-only", keep_pages).destination(
    "index",
    Sql(
        f"sqlite:///{HERE / 'site.db'}",
        columns={"title": "title", "url": "url"},
        full_text=["title", "text"],
    ),
)
