"""Plays and a catalogue of plays into one index: the plan that docs/reference/plan.md draws."""

import urllib.request

from ferryman import Document, Effect, Plan
from ferryman.destinations import Delivery, Destination, JsonLines, Outcome, Sql
from ferryman.routers import ByField, Duplicate
from ferryman.sources import Files

NEWS = "http://127.0.0.1:9000/news"


def read_text(doc: Document) -> Document:
    doc["text"] = doc.text()
    doc["kind"] = doc.id.split("/")[1]  # plays/comedies/twelfth-night.txt
    return doc


def add_laughs(doc: Document) -> Document:
    doc["laughs"] = doc["text"].count("ha, ha")
    return doc


def add_dead(doc: Document) -> Document:
    doc["dead"] = doc["text"].count("[Dies.]")
    return doc


def read_card(doc: Document) -> Document:
    doc["text"] = doc.text(encoding="latin-1")
    return doc


def add_words(doc: Document) -> Document:
    doc["words"] = len(doc["text"].split())
    return doc


class News(Destination):
    """Tells a web page of each document; who is told twice has heard it twice."""

    effect = Effect.POTENT

    def target(self) -> str:
        return NEWS

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        for delivery in chunk:
            urllib.request.urlopen(NEWS, data=delivery.id.encode(), timeout=10).close()
        return [Outcome.ok() for _ in chunk]


plan = Plan("plays", version=1)

plays = plan.source("plays", Files("/data/corpus", include="**/*.txt", prefix="plays/"))
cards = plan.source("cards", Files("/data/catalogue", prefix="cards/", detect="fingerprint"))

kind = (
    plays.step("read", read_text)
    .tee("archive", JsonLines("/data/archive"))
    .route("by-kind", ByField("kind", {"comedies": "comedy", "tragedies": "tragedy"}, default="other"))
)
comedy = kind.step("comedy", add_laughs)
tragedy = kind.step("tragedy", add_dead)
other = kind.step("other", add_words)
card = cards.step("card", read_card, timeout=10)

copies = plan.step("words", add_words, after=[comedy, tragedy, other, card]).route("copies", Duplicate())
copies.destination("index", Sql("sqlite:////data/plays.db", full_text=["text"]))
copies.destination("news", News(), attempts=1)
