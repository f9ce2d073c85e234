"""A destination in Redis: a key for each document, written by a script that compares first.

A script of Redis runs whole, with nothing in between, and its effects are one entry of the append-only file. So a
chunk's values, hashes, sequences and tombstones are there together or not at all. Beside the values, under
``ferryman:<prefix>``, lie two hashes: ``…versions`` has the last delivery of each id, deletes included, and ``…about``
the target's identity and its highest sequences.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

import msgspec

from ferryman.destinations.base import (
    Delivery,
    Destination,
    DestinationContext,
    Effect,
    Facts,
    Hit,
    Outcome,
    Stored,
    content_hash,
    encode_payload,
    slices,
    writer_name,
)
from ferryman.document import decode_json
from ferryman.errors import BadDocument, Misconfigured, PlanError, Unavailable
from ferryman.net import relative_paths, urls
from ferryman.net.http import expand_variables

if TYPE_CHECKING:
    import redis as redis_

__all__ = ["Redis"]

Value = Literal["hash", "json", "sorted_set"]

CONNECT_TIMEOUT_S: Final = 10
ANSWER_TIMEOUT_S: Final = 50
"""Time for an answer: less than what a ``write`` may take."""

SCRIPT_BYTES: Final = 16 << 20
"""Size at which a chunk is sent in several scripts: nobody else is served while one runs."""

VALUE_BYTES: Final = 512 << 20
"""Longest value that Redis takes by default (``proto-max-bulk-len``)."""

OWN: Final = "_ferryman"
"""Field of a hash with its delivery, as JSON."""

_PAGE: Final = 1_000
"""Entries read in a request of ``inventory``."""

SCRIPT: Final = """
local versions, about, writer = KEYS[1], KEYS[2], ARGV[1]
local highest, top, outcomes, at = 0, '0', {}, 2
while at <= #ARGV do
  local key, id, sequence, hash, record = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local command, first, last = ARGV[at + 5], at + 7, at + 6 + tonumber(ARGV[at + 6])
  local number, known_number, known_hash = tonumber(sequence), -1, ''
  local there = redis.call('HGET', versions, id)
  if there then
    local text
    text, known_hash = string.match(there, '^(%d+) (%S+) ')
    known_number = tonumber(text)
  end
  if known_hash == hash and known_number >= number then
    outcomes[#outcomes + 1] = 1
  elseif known_number > number then
    outcomes[#outcomes + 1] = 0
  else
    -- Before the first effect: a command that is refused for lack of memory leaves all as it was.
    redis.call('HSET', versions, id, record)
    redis.call('DEL', key)
    for from = first, last, 1000 do
      redis.call(command, key, unpack(ARGV, from, math.min(from + 999, last)))
    end
    outcomes[#outcomes + 1] = 1
  end
  if number > highest then highest, top = number, sequence end
  at = last + 1
end
for _, field in ipairs({'highest', writer}) do
  if highest > tonumber(redis.call('HGET', about, field) or '0') then redis.call('HSET', about, field, top) end
end
return outcomes
"""
"""Script for a chunk. Of each delivery it has: key, id, sequence, hash, record, the command that writes the value, the
number of the command's arguments, and these."""

_log = logging.getLogger("ferryman")


class _LastWrite(msgspec.Struct, array_like=True):
    """Last delivery of an id, as the hash ``…versions`` has it: after sequence and hash, which the script reads."""

    hash: str
    operation: str
    content_hash: str = ""
    source: str = ""
    version: str = ""
    route: tuple[str, ...] = ()


_pack = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(_LastWrite).decode
_json = msgspec.json.Encoder(order="sorted").encode


class Redis(Destination):
    """Writes documents into Redis, a key a document: ``<prefix><id>``.

    ``Redis("redis://cache.example.org:6379/0", prefix="documents:")`` needs ``pip install 'ferryman[redis]'``. A value
    is replaced whole, and deleted with its document. It is one of

    - ``"hash"``: a hash with the document's fields (texts as they are, everything else as JSON), ``text`` (the raw
      bytes decoded as UTF-8; left out without raw, and where a step has made a field of that name), and ``_ferryman``,
      JSON with the delivery's hash, sequence, parent, origin, source, version and route;
    - ``"json"``: a string, JSON with id, fields, text and all that a delivery has;
    - ``"sorted_set"``: the field ``scores``, an object of member -> number, as a sorted set: for an inverted index, or
      a ranking.

    **Exactly-once**, as far as Redis keeps what it has confirmed: a chunk is one script, which compares hashes and
    sequences with what is there, and refuses older ones, deletes included. ``appendonly yes`` and ``appendfsync
    always`` keep all over a crash of Redis; with less, a run warns. A Redis that has come back with older data is
    noticed when a run begins, and ``ferryman verify --repair`` sends what is missing.

    A server that is full (``maxmemory``) is unavailable: it is waited for, and no attempt is spent. A
    ``maxmemory-policy`` that evicts keys without an expiry (``allkeys-…``) is refused, for what was delivered would
    vanish. A Redis Cluster is refused, too: a script there sees a part of the keys.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``; ``${NAME}`` in it is filled in from the environment of
            the driver and the workers: then it is in no plan file, state, message or log.
        prefix: what each key begins with. Two destinations of one database need different ones, of which none begins
            with the other.
        value: see above.
        scores: for sorted sets: the field with members and scores.
        ca: a PEM file with the authorities to trust for ``rediss://``; None: the system's.

    Raises:
        PlanError: when it is made: an argument that cannot be meant.
    """

    facts: ClassVar[Facts] = Facts(
        stored="a key an id, and in `ferryman:<prefix>versions` the last delivery of each id with hash and sequence, "
        "deletes included",
        limits=("512 MB a value", "one server, with replicas or without: no Redis Cluster"),
        outcomes=(
            ("the same hash is there", "ok"),
            ("a higher sequence is there", "stale"),
            ("OOM, LOADING, MISCONF, READONLY, BUSY, no connection, no answer", "transient, about all"),
            ("NOAUTH, WRONGPASS, NOPERM, an unknown command", "permanent, about all"),
        ),
        tested=("Redis 7.0",),
    )
    effect = Effect.IDEMPOTENT
    transactional = True
    compares_sequences = True
    keyed_by_id = True
    preferred_batch: ClassVar[int | None] = 500
    """A script of so many takes a few milliseconds, in which nobody else is served."""

    def __init__(
        self,
        url: str,
        prefix: str = "documents:",
        value: Value = "hash",
        *,
        scores: str = "scores",
        ca: str | Path | None = None,
    ) -> None:
        self.url, self.prefix, self.value, self.scores = url, prefix, value, scores
        self.ca = None if ca is None else relative_paths.absolute(str(ca))
        if findings := list(self._findings()):
            raise PlanError([f"Redis(prefix={prefix!r}): {finding}" for finding in findings])
        self._client: redis_.Redis | None = None
        self._writer = ""

    def _findings(self) -> Iterator[str]:
        try:
            urls.check_login(self.url)
        except ValueError as e:
            yield str(e)
        if self.url.partition("://")[0] not in ("redis", "rediss", "unix") and not self.url.startswith("${"):
            yield "the url does not begin with redis://, rediss:// or unix://"
        if not self.prefix:
            yield "prefix='': without one, nobody can tell the keys of documents from others"
        elif self.prefix.startswith("ferryman:"):
            yield "keys that begin with ferryman: are Ferryman's own: give another prefix"
        if self.value not in get_args(Value):
            yield f"value={self.value!r}: choose one of {', '.join(get_args(Value))}"
        if self.value == "sorted_set" and not self.scores:
            yield "scores='': name the field that has members and scores"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def target(self) -> str:
        return f"{urls.strip_secrets(self.url)}#{self.prefix}"

    def not_installed(self) -> str:
        try:
            import redis  # noqa: F401
        except ModuleNotFoundError:
            return "redis is not installed: pip install 'ferryman[redis]'"
        return ""

    # --- the driver ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that the server keeps what it is given, and give the target an identity.

        Raises:
            Unavailable: it does not answer, or is full.
            Misconfigured: it is a cluster, evicts keys, or refuses the user.
        """
        with self._connection() as client:
            info = client.info()
            if int(info.get("cluster_enabled", 0)):
                raise Misconfigured(
                    f"{self.target()}: it is a Redis Cluster, where a script sees only some of the keys. Give the "
                    "URL of a single server."
                )
            policy = str(info.get("maxmemory_policy", "noeviction"))
            if policy.startswith("allkeys"):
                raise Misconfigured(
                    f"{self.target()}: its maxmemory-policy is {policy}: it would evict documents when its memory is "
                    "full. Set it to noeviction (CONFIG SET maxmemory-policy noeviction), then run again."
                )
            if info.get("role") == "slave":
                raise Unavailable(f"{self.target()}: it is a replica, which only reads: give the URL of the primary.")
            if risk := self._durability_risk(client, info):
                _log.warning(
                    "%s: %s. The next run notices it, and `ferryman verify PLAN --repair` sends what is missing",
                    self.target(), risk,
                )  # fmt: skip
            client.hsetnx(self._about, "identity", uuid.uuid4().hex)

    def durability_risk(self) -> str:
        with self._connection() as client:
            return self._durability_risk(client, client.info())

    def _durability_risk(self, client: redis_.Redis, info: Mapping[str, Any]) -> str:
        import redis

        kept = "appendonly is off: a crash of Redis loses what it had not yet saved"
        if int(info.get("aof_enabled", 0)):
            try:
                flushed = client.config_get("appendfsync").get("appendfsync", "always")
            except redis.ResponseError:  # a service that hides its configuration
                return ""
            if flushed == "always":
                return ""
            kept = f"appendfsync is {flushed}: a crash of its machine loses the last moments"
        return f"{kept}. To keep all: CONFIG SET appendonly yes, CONFIG SET appendfsync always"

    def identity(self) -> str | None:
        """Return the id that the target got when it was first used; "" if there is none."""
        with self._connection() as client:
            return _text(client.hget(self._about, "identity") or "")

    def highest_sequence(self) -> int | None:
        """Return the highest sequence that it was ever sent."""
        return self._highest("highest")

    def highest_of(self, context: DestinationContext) -> int | None:
        """Return the highest sequence of the state's deliveries."""
        return self._highest(_writer_field(context))

    def _highest(self, field: str) -> int | None:
        with self._connection() as client:
            found = client.hget(self._about, field)
        return None if found is None else int(found)

    def inventory(self, context: DestinationContext, ids: Collection[str] | None = None) -> Iterator[Stored]:
        """Yield the documents that are there and were written by Ferryman.

        Raises:
            Unavailable, Misconfigured: it cannot be read.
        """
        with self._connection() as client:
            records: Iterator[tuple[bytes, bytes]]
            if ids is None:
                records = client.hscan_iter(self._versions, count=_PAGE)
            else:
                records = self._records_of(client, ids)
            seen: set[bytes] = set()
            for some in _pages(records):
                fresh = [(id, record) for id, record in some if id not in seen]  # a scan may bring an entry twice
                seen.update(id for id, _ in fresh)
                yield from self._read_documents(client, [(id, read_record(record)) for id, record in fresh])

    def _records_of(self, client: redis_.Redis, ids: Collection[str]) -> Iterator[tuple[bytes, bytes]]:
        for some in slices(ids, _PAGE):
            keys = [id.encode() for id in some if _is_text(id)]
            if keys:
                found: list[bytes | None] = client.hmget(self._versions, keys)  # type: ignore[assignment]
                yield from ((id, record) for id, record in zip(keys, found, strict=True) if record is not None)

    def _read_documents(self, client: redis_.Redis, entries: list[tuple[bytes, _LastWrite]]) -> Iterator[Stored]:
        """Yield those of these documents whose values are there, with what has become of them."""
        there = [(id, record) for id, record in entries if record.operation == "upsert"]
        with client.pipeline(transaction=False) as pipeline:
            for id, _ in there:
                self._read(pipeline, self.prefix.encode() + id)
            values = pipeline.execute(raise_on_error=False)
        for (id, record), value in zip(there, values, strict=True):
            if not value and record.content_hash != _EMPTY:
                continue
            intact = not isinstance(value, Exception) and _content_hash(self.value, value) == record.content_hash
            yield Stored(id.decode(), record.hash, intact, record.source, record.version, record.route)

    def _read(self, client: Any, key: bytes) -> Any:
        match self.value:
            case "hash":
                return client.hgetall(key)
            case "json":
                return client.get(key)
            case _:
                return client.zrange(key, 0, -1, withscores=True)

    def lookup(self, id: str) -> Hit | None:
        """Return the document of this id, see ``Destination.lookup``; of a hash, fields that are not text as JSON.

        Raises:
            Unavailable, Misconfigured: it cannot be read.
        """
        if not _is_text(id):
            return None
        with self._connection() as client:
            value = self._read(client, (self.prefix + id).encode())
        if not value:
            return None
        match self.value:
            case "hash":
                fields: dict[str, Any] = {_text(name): _text(each) for name, each in value.items()}
                fields.pop(OWN, None)
                text = fields.pop("text", None)
            case "json":
                payload = decode_json(value)
                fields, text = payload["fields"], payload["text"]
            case _:
                fields, text = {self.scores: {_text(member): score for member, score in value}}, None
        return Hit(id, None, "", 0.0, fields=fields, text=text)

    # --- the worker ---------------------------------------------------------------------------------------------------

    def open(self, context: DestinationContext) -> None:
        self._writer = _writer_field(context)
        self._client = self._connect()

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def write(self, chunk: list[Delivery]) -> list[Outcome]:
        """One script for the chunk; several if it is large.

        Raises:
            Unavailable: the server is away, full, or loading its data.
            Misconfigured: it refuses the user or the script.
        """
        if self._client is None:
            raise Misconfigured(f"{self.target()}: write before open")
        outcomes: list[Outcome | None] = [None] * len(chunk)
        waiting: list[tuple[int, list[bytes]]] = []
        size = 0
        for position in sorted(range(len(chunk)), key=lambda i: chunk[i].sequence):
            try:
                entry = self._entry(chunk[position])
            except UnicodeEncodeError:
                outcomes[position] = Outcome.permanent("a lone surrogate is not text: replace it in a step.")
                continue
            except (BadDocument, ValueError, TypeError) as e:
                outcomes[position] = Outcome.permanent(str(e))
                continue
            entry_bytes = sum(map(len, entry))
            if waiting and size + entry_bytes > SCRIPT_BYTES:
                self._run(waiting, outcomes)
                waiting, size = [], 0
            waiting.append((position, entry))
            size += entry_bytes
        if waiting:
            self._run(waiting, outcomes)
        return [outcome or Outcome.ok() for outcome in outcomes]

    def _entry(self, delivery: Delivery) -> list[bytes]:
        """Return a delivery as arguments of the script.

        Raises:
            BadDocument, ValueError, TypeError: it holds what Redis cannot hold.
        """
        id, sequence, digest = delivery.id.encode(), str(delivery.sequence).encode(), delivery.hash.encode()
        parts: list[bytes] = []
        content = ""
        if delivery.operation == "upsert":
            parts = self._parts(delivery)
            content = _content_hash(self.value, _as_read(self.value, parts))
        if any(len(part) > VALUE_BYTES for part in parts):
            raise BadDocument(f"it is larger than the {VALUE_BYTES >> 20} MB of a value: shorten it in a step.")
        record = _LastWrite(
            delivery.hash, delivery.operation, content, delivery.source, delivery.version, delivery.route
        )
        packed = b" ".join((sequence, digest, _pack(record)))
        key, command = self.prefix.encode() + id, _COMMANDS[self.value]
        return [key, id, sequence, digest, packed, command, str(len(parts)).encode(), *parts]

    def _parts(self, delivery: Delivery) -> list[bytes]:
        """Return a document's value as arguments of the command that writes it."""
        match self.value:
            case "json":
                return [encode_payload(delivery)]
            case "hash":
                fields = {name: _field(value) for name, value in delivery.fields.items()}
                if delivery.raw is not None:
                    fields.setdefault("text", delivery.text().encode())
                fields[OWN] = _json(_about_delivery(delivery))
                return [part for name in sorted(fields) for part in (name.encode(), fields[name])]
        members = delivery.fields.get(self.scores, {})
        if not isinstance(members, Mapping) or not all(map(_is_number, members.values())):
            raise BadDocument(f"the field {self.scores!r} is not an object of member -> number.")
        return [part for member in sorted(members) for part in (_score(members[member]), member.encode())]

    def _run(self, entries: list[tuple[int, list[bytes]]], outcomes: list[Outcome | None]) -> None:
        assert self._client is not None
        with self._translated_errors():
            script = self._client.register_script(SCRIPT)
            arguments: list[bytes] = [self._writer.encode(), *(part for _, entry in entries for part in entry)]
            answers = script(keys=[self._versions, self._about], args=arguments)
        for (position, _), took_effect in zip(entries, answers, strict=True):
            outcomes[position] = Outcome.ok() if took_effect else Outcome.stale()

    # --- the server ---------------------------------------------------------------------------------------------------

    @property
    def _versions(self) -> str:
        return f"ferryman:{self.prefix}versions"

    @property
    def _about(self) -> str:
        return f"ferryman:{self.prefix}about"

    def _connect(self) -> redis_.Redis:
        try:
            import redis
        except ModuleNotFoundError:
            raise Misconfigured(f"{self.target()}: {self.not_installed()}") from None
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options: dict[str, Any] = {"ssl_ca_certs": self.ca} if self.ca else {}
        return redis.Redis.from_url(
            expand_variables(self.url, self.target()),
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=ANSWER_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # the engine tries again
            client_name="ferryman",
            **options,
        )

    @contextmanager
    def _connection(self) -> Iterator[redis_.Redis]:
        """Open a connection, and convert its errors."""
        with self._translated_errors():
            client = self._connect()
            try:
                yield client
            finally:
                client.close()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        import redis

        try:
            yield
        except redis.RedisError as e:
            raise self._explain(e) from e

    def _explain(self, error: redis_.RedisError) -> Exception:
        """Return the error of the whole destination that an error of the server or the connection means."""
        from redis import exceptions as redis

        text = f"{self.target()}: {' '.join(str(error).split()).removesuffix('.')}"
        code = str(error).partition(" ")[0]
        refused = (redis.AuthenticationError, redis.AuthorizationError, redis.NoPermissionError)
        if isinstance(error, refused) or code in ("NOAUTH", "WRONGPASS", "NOPERM"):
            return Misconfigured(f"{text}: correct user and password, or what this user may do, then run again.")
        if isinstance(error, redis.OutOfMemoryError) or "OOM command not allowed" in str(error):
            return Unavailable(f"{text}: raise maxmemory, or make room; it is tried again")
        if isinstance(error, redis.ConnectionError | redis.TimeoutError | redis.ReadOnlyError):
            return Unavailable(f"{text}; it is tried again")
        if code in ("LOADING", "MISCONF", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN", "CLUSTERDOWN", "BUSY", "UNKILLABLE"):
            return Unavailable(f"{text}; it is tried again")
        return Misconfigured(f"{text}: is it a Redis that runs scripts? Correct the URL, then run again.")


def read_record(record: bytes) -> _LastWrite:
    """Return an entry of the hash ``…versions``."""
    return _decode_record(record.split(b" ", 2)[2])


_COMMANDS: Final[dict[Value, bytes]] = {"hash": b"HSET", "json": b"SET", "sorted_set": b"ZADD"}


def _writer_field(context: DestinationContext) -> str:
    return f"writer:{writer_name(context)}"


def _about_delivery(delivery: Delivery) -> dict[str, Any]:
    return {
        "hash": delivery.hash,
        "sequence": delivery.sequence,
        "origin": delivery.origin_id,
        "parent": delivery.parent_id,
        "source": delivery.source,
        "version": delivery.version,
        "route": delivery.route,
    }


def _field(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else _json(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _score(number: float) -> bytes:
    """Return a score as text that Redis reads: it has 64-bit floats only.

    Raises:
        BadDocument: the number is too large for one.
    """
    try:
        return repr(float(number)).encode()
    except OverflowError:
        raise BadDocument(f"{number} is too large for a score.") from None


def _as_read(value: Value, parts: list[bytes]) -> Any:
    """Return what is read back of these parts."""
    match value:
        case "json":
            return parts[0]
        case "hash":
            return dict(zip(parts[::2], parts[1::2], strict=True))
    return [(member, float(score)) for score, member in zip(parts[::2], parts[1::2], strict=True)]


def _content_hash(kind: Value, value: Any) -> str:
    """Return a hash over what a key holds."""
    match kind:
        case "json":
            return content_hash(value)
        case "hash":
            return content_hash(*(part for name in sorted(value) for part in (name, value[name])))
    return content_hash(*(part for member, score in sorted(value) for part in (member, repr(score))))


_EMPTY: Final = content_hash()
"""Hash of a sorted set without members, for which Redis has no key."""


def _pages(records: Iterator[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    page: list[tuple[bytes, bytes]] = []
    for record in records:
        page.append(record)
        if len(page) == _PAGE:
            yield page
            page = []
    if page:
        yield page


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
