"""What the ``Webhook`` destination sends, to a server of the test's own; its promises and arguments."""

from __future__ import annotations

import base64
import hmac
import json
import pickle
import time
from hashlib import blake2b
from pathlib import Path

import pytest

from ferryman.destinations import Delivery, Destination, Outcome, Webhook
from ferryman.errors import PermanentError
from ferryman.testing.destinations import delete, delivery
from ferryman.testing.servers import ServerSuite
from tests.destinations.webhook import THREE, kinds, opened, receiver
from tests.support.receiver import Receiver, Reply, Request

__all__ = ["receiver"]


class TestPromises(ServerSuite):
    secret = "not to be shown"

    @pytest.fixture(autouse=True)
    def _receiver(self, receiver: Receiver) -> None:
        self.receiver = receiver
        receiver.answer = self.answer

    def answer(self, request: Request) -> Reply:
        if request.headers.get("authorization") != "Basic " + base64.b64encode(b"user:hush").decode():
            return Reply(401)
        refused = [d["hash"] for d in request.json["deliveries"] if d["id"].startswith("unfit")]
        said = [
            {"hash": d["hash"], "outcome": "permanent" if d["hash"] in refused else "ok", "why": "on principle"}
            for d in request.json["deliveries"]
        ]
        return Reply(body=json.dumps({"outcomes": said}).encode() if refused else b"")

    def server(self) -> tuple[str, int]:
        return "127.0.0.1", self.receiver.port

    def destination(self, folder: Path) -> Destination:
        return self.destination_at(folder, *(self.server() if hasattr(self, "receiver") else ("127.0.0.1", 1)))

    def destination_at(self, folder: Path, host: str, port: int) -> Destination:
        return Webhook(f"http://user:hush@{host}:{port}/hook", secret=self.secret, batch=7)

    def wrong_credentials(self, folder: Path) -> Destination:
        return Webhook(f"{self.receiver.url.replace('//', '//user:wrong@')}", secret=self.secret)

    def unfit(self, id: str, sequence: int) -> Delivery:
        return delivery(id, sequence)

    def hashes(self, folder: Path) -> list[str]:
        told = [told for request in self.receiver.requests for told in request.json["deliveries"]]
        return [each["hash"] for each in told if not each["id"].startswith("unfit")]


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_what_is_posted(receiver: Receiver) -> None:
    """A JSON object a chunk: who sends, and each delivery with its parts."""
    child = Delivery(
        "a#1",
        hash="f" * 32,
        sequence=7,
        fields=b'{"title":"One"}',
        raw="é".encode(),
        version="v",
        source="files",
        parent_id="a",
        origin_id="a",
        route=("left",),
    )
    bytes_ = delivery("bytes", 9)
    bytes_.raw = b"\x80\x81"
    assert opened(receiver).write([child, delete("b", 8), bytes_]) == [Outcome.ok()] * 3
    [request] = receiver.requests
    assert request.headers["content-type"] == "application/json"
    told = request.json
    assert {name: told[name] for name in ("plan", "plan_version", "destination")} == {
        "plan": "plays",
        "plan_version": 2,
        "destination": "notify",
    }
    one, gone, raw = told["deliveries"]
    assert one == {
        "hash": "f" * 32,
        "sequence": 7,
        "operation": "upsert",
        "id": "a#1",
        "parent_id": "a",
        "origin_id": "a",
        "source": "files",
        "version": "v",
        "route": ["left"],
        "fields": {"title": "One"},
        "text": "é",
    }
    assert (gone["operation"], gone["id"], gone["fields"], gone["text"]) == ("delete", "b", {}, None)
    assert (raw["text"], raw["raw_base64"]) == (None, "gIE=")


def test_the_key_is_the_delivery_s_hash(receiver: Receiver) -> None:
    """Of a chunk the hash of its hashes; the same again when it is sent again, by another worker too."""
    for _ in range(2):
        opened(receiver).write(THREE[:1])
        opened(receiver).write(THREE)
    keys = [request.headers["idempotency-key"] for request in receiver.requests]
    of_all = blake2b("".join(d.hash for d in THREE).encode(), digest_size=16).hexdigest()
    assert keys == [THREE[0].hash, of_all] * 2
    assert receiver.requests[0].body == receiver.requests[2].body


@pytest.mark.parametrize(
    ("secret", "key"), [("hush", b"hush"), ("whsec_" + base64.b64encode(b"\0key").decode(), b"\0key")]
)
def test_the_signature_is_that_of_standard_webhooks(receiver: Receiver, secret: str, key: bytes) -> None:
    """HMAC-SHA256 over id, time and body; the time is now."""
    opened(receiver, secret=secret).write(THREE)
    [request] = receiver.requests
    at = request.headers["webhook-timestamp"]
    assert abs(int(at) - time.time()) < 60
    assert request.headers["webhook-id"] == request.headers["idempotency-key"]
    signed = f"{request.headers['webhook-id']}.{at}.".encode() + request.body
    expected = base64.b64encode(hmac.new(key, signed, "sha256").digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"


def test_without_a_secret_nothing_is_signed(receiver: Receiver) -> None:
    """No header that says it was."""
    opened(receiver).write(THREE)
    assert not [name for name in receiver.requests[0].headers if name.startswith("webhook-")]


def test_secrets_come_from_the_environment(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the URL, the secret and the headers; they are filled in in the worker, and shown nowhere."""
    monkeypatch.setenv("HOOK_TOKEN", "t0ken\n")
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    hook = opened(
        receiver.url + "/${HOOK_TOKEN}", secret="${HOOK_SECRET}", headers={"Authorization": "Bearer ${HOOK_TOKEN}"}
    )
    receiver.answer = lambda request: Reply(422, f"no such {request.headers['authorization']}".encode())
    [outcome] = hook.write(THREE[:1])
    [request] = receiver.requests
    assert request.path == "/hook/t0ken"
    assert request.headers["authorization"] == "Bearer t0ken"
    assert "webhook-signature" in request.headers
    shown = f"{outcome.why} {hook!r} {hook.target()} {pickle.dumps(hook)!r}"
    assert "t0ken" not in shown
    assert "s3cret" not in shown
    assert "no such …" in outcome.why


def test_a_user_in_the_url_is_sent_as_basic_authentication(receiver: Receiver) -> None:
    """Percent-encoding undone; and it is no part of what is shown."""
    hook = opened(receiver.url.replace("//", "//me:p%40ss@"))
    hook.write(THREE[:1])
    assert receiver.requests[0].headers["authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert hook.target() == receiver.url


def test_a_document_that_is_no_json_is_left_out(receiver: Receiver) -> None:
    """Its outcome says why, the others are sent; of nothing else no request is made."""
    bad = delivery("bad", 1, fields={"title": "\ud800"})
    hook = opened(receiver)
    assert kinds(hook.write([bad])) == [("permanent", False)]
    assert receiver.requests == []
    outcomes = hook.write([bad, delivery("good", 2)])
    assert kinds(outcomes) == [("permanent", False), ("ok", False)]
    assert "bad: field 'title'" in outcomes[0].why
    assert receiver.ids == ["good"]


def test_the_connection_is_kept(receiver: Receiver) -> None:
    """Requests of a task share it; one that the receiver has closed is made anew, and nothing is lost or unknown."""
    hook = opened(receiver)
    for sequence in range(1, 4):
        assert hook.write([delivery("a", sequence)]) == [Outcome.ok()]
    assert len(receiver.connections) == 1
    receiver.stop()
    receiver.start()
    assert hook.write([delivery("a", 4)]) == [Outcome.ok()]


def test_a_rate_is_kept(receiver: Receiver) -> None:
    """Requests a second; one task at a time then, so that it is the rate of all."""
    hook = opened(receiver, rate=50)
    assert hook.single_writer
    assert not Webhook.single_writer
    began = time.monotonic()
    for sequence in range(1, 12):
        hook.write([delivery("a", sequence)])
    assert time.monotonic() - began >= 10 / 50


# --- arguments --------------------------------------------------------------------------------------------------------


def test_a_url_out_of_a_variable_may_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told without its value."""
    monkeypatch.setenv("HOOK_URL", "not-a-url-t0ken")
    with pytest.raises(PermanentError, match=r"\$\{HOOK_URL\} is not an http or https URL") as caught:
        Webhook("${HOOK_URL}").check()
    assert "t0ken" not in str(caught.value)
    monkeypatch.setenv("HOOK_SECRET", "whsec_no base64!")
    with pytest.raises(PermanentError, match="not base64 behind that"):
        opened("http://127.0.0.1/hook", secret="${HOOK_SECRET}")
