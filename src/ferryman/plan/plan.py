"""A plan: what is to be done, as data. Building one does no I/O and starts no Spark."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ferryman import limits
from ferryman.destinations.base import Destination, Effect, Guarantee
from ferryman.errors import PlanError, UsageError
from ferryman.net import urls
from ferryman.net.relative_paths import absolute
from ferryman.plan import check
from ferryman.plan.calls import forgotten_return_warnings, pickling_findings
from ferryman.plan.fingerprint import fingerprint
from ferryman.plan.inputs import Strategy, strategy_findings
from ferryman.plan.nodes import (
    AltsNode,
    Combiner,
    Combining,
    Depends,
    DestinationNode,
    JoinNode,
    Key,
    KeyedNode,
    KeyedState,
    Node,
    Policy,
    RouterNode,
    SourceNode,
    StepFunction,
    StepNode,
    UpdateFunction,
    Value,
    capability_names,
    exports_node,
    keyed_nodes,
)
from ferryman.remembered import Remember
from ferryman.routers import Router
from ferryman.sources.base import Source
from ferryman.sources.log import Alternating, Joined, Log

if TYPE_CHECKING:
    from ferryman.destinations.cassandra import Cassandra
    from ferryman.document import Document
    from ferryman.records.keys import KeyStates


_OTHER_VERSION: ContextVar[int | None] = ContextVar("ferryman_other_version", default=None)


@contextmanager
def as_version(version: int | None) -> Iterator[None]:
    """Give plans that are made meanwhile this version instead of their own; None: their own.

    A plan file that names its places after ``plan.version`` then makes the older plan, whose index is still there.
    """
    before = _OTHER_VERSION.set(version)
    try:
        yield
    finally:
        _OTHER_VERSION.reset(before)


class Plan:
    """A named, versioned graph: sources → steps and routers → destinations.

    >>> plan = Plan("plays", version=1)
    >>> plan.source("files", files).step("text", read_text).destination("index", index)

    Name and version decide where the state lives. A plan is frozen once it runs: adding to it raises ``PlanError``.
    Mistakes are not raised while it is built but found all at once by ``check()``, which every run calls first.

    Args:
        strategy: "at-most-once": the steps see each entry once at most, whatever is killed. What had begun then is in
            doubt, and an error of a step is final. Only where all sources are logs. None: they see it again after a
            kill, and until an error has passed.
        checkpoint: with a strategy, how many entries a step may see between two durable notes of how far it is: that
            many are in doubt after a kill. A note costs as much as a sync of the disk that the state is on.
        provenance: of what comes from a log, keep with each delivery where it came from; see ``Delivery.provenance``.
    """

    def __init__(
        self,
        name: str,
        version: int = 0,
        *,
        strategy: Strategy | None = None,
        checkpoint: int = 1,
        provenance: bool = True,
    ) -> None:
        self.name = name
        self.version = version if (other := _OTHER_VERSION.get()) is None else other
        self.strategy = strategy
        self.once = strategy == "at-most-once"
        self.checkpoint = checkpoint
        self.provenance = provenance
        self._nodes: list[Node] = []
        self._notified: list[NotifyTarget] = []
        self._mirrors: list[Cassandra] = []
        self._frozen = False

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in the order of their making."""
        return tuple(self._nodes)

    @property
    def longest_backoff_s(self) -> float:
        """No wait for another attempt is longer, at any destination; seconds."""
        waits = (n.policy.longest_backoff_s for n in self._nodes if isinstance(n, DestinationNode))
        return max(waits, default=limits.BACKOFF_MAX_S)

    @property
    def key(self) -> str:
        """``name-vVERSION``: the folder of its state."""
        return f"{self.name}-v{self.version}"

    def source(
        self,
        name: str,
        source: Source,
        *,
        brake: int | None = limits.BRAKE,
        patience: float | str = limits.PATIENCE_S,
        attempts: int | None = None,
    ) -> Handle:
        """Where documents come from. ``brake``, ``patience`` and ``attempts`` say what errors of its ``read`` mean, as
        for ``step``."""
        policy = error_policy(brake, patience, attempts)
        return self._add(SourceNode(node_name(name), source=source, **policy))

    def join(
        self,
        name: str,
        fn: StepFunction,
        inputs: Mapping[str, Any],
        *,
        timeout: float | None = None,
        brake: int | None = limits.BRAKE,
        patience: float | str = limits.PATIENCE_S,
        attempts: int | None = None,
    ) -> Handle:
        """The k-th entry of each of several logs together: those that their filters let pass. It waits for the slowest.

        Args:
            fn: called with a document of each input, by the inputs' names. It returns one of them or another document
                or a dict (its fields go on), None (dropped), or several (each goes on as a child).
            inputs: name -> source of this plan, which must be a log.
        """
        logs = {key: self._log_of_input(source) for key, source in inputs.items()}
        after, policy = _node_names(inputs.values()), error_policy(brake, patience, attempts)
        return self._add(JoinNode(node_name(name), after, source=Joined(logs), fn=fn, timeout=timeout, **policy))

    def alts(
        self,
        name: str,
        inputs: Iterable[Any],
        *,
        brake: int | None = limits.BRAKE,
        patience: float | str = limits.PATIENCE_S,
        attempts: int | None = None,
    ) -> Handle:
        """The entries of several logs, a share of each in turns: whichever has one. Each log keeps its order; the
        commit of a wave fixes which of them it has taken.

        Args:
            inputs: sources of this plan, which must be logs.
        """
        after, policy = _node_names(inputs), error_policy(brake, patience, attempts)
        logs = {key: self._log_of_input(key) for key in after}
        return self._add(AltsNode(node_name(name), after, source=Alternating(logs), **policy))

    def step(
        self,
        name: str,
        fn: StepFunction,
        *,
        effect: Effect = Effect.SAFE,
        mutates: bool = True,
        timeout: float | None = None,
        batch: int | None = None,
        batch_bytes: int | None = None,
        weight: Callable[[Document], float] | None = None,
        arrow: bool = False,
        concurrency: int = 1,
        rate: float | str | None = None,
        brake: int | None = limits.BRAKE,
        patience: float | str = limits.PATIENCE_S,
        attempts: int | None = None,
        needs: str | Iterable[str] | None = None,
        nan: Literal["reject", "null"] = "reject",
        depends: Any = None,
        remember: Remember | None = None,
        after: Any = None,
    ) -> Handle:
        """A function of a document. It returns the document (which goes on), None (DROPPED), or an iterable of the
        document and of children that it made of it with ``document.child()`` (each goes on). What it raises is this
        document's error. It may be an ``async def``.

        Args:
            effect: what repeating it does outside. POTENT goes with ``Plan(strategy="at-most-once")`` only: elsewhere
                steps run before the commit, and may run again.
            mutates: does it change the document?
            timeout: seconds a call may take; one that takes longer is interrupted, or its process is ended. None: 120 s
                for ready-made steps that read formats, match patterns or ask servers, any time for all other functions.
            batch: it is called with a list of so many documents at most, and returns a list with an answer for each, in
                their order: what it would return for one, or an exception object. What it raises is tried again with
                each half of the list, down to the document that is to blame; not so where a service is away.
            batch_bytes: with ``batch``: a list closes before its documents have more bytes than this; a larger document
                comes alone.
            weight: size of a document for ``batch_bytes`` in another unit than bytes, such as a function that counts
                tokens.
            arrow: it is called with a ``pyarrow.RecordBatch`` (``id``, ``raw``, a column for each field) of 1024
                documents at most, or ``batch``, and returns one. A row goes to the document of its id, one that is
                missing is dropped, null is an absent field.
            concurrency: calls that a task may have under way at once, in threads or, of an ``async def``, in one event
                loop. Documents keep their order. A call that hangs costs its own document, where ``timeout`` is given.
            rate: calls of the whole run at most: a number a second, or ``"100/s"``, ``"600/m"``, ``"50/h"``.
            brake: after errors of so many documents in a row, it is left alone, its documents are kept. None: never.
            patience: how long a document is tried again that meets transient errors: seconds, or "15m", "2h", "1d".
            attempts: so often at most, whatever the error; None: as the destination says.
            needs: what a machine must have to run it, by name, such as "gpu". It is called only on executors that say
                they have it, by ``--has`` or ``FERRYMAN_HAS`` in their environment; until then its documents wait.
            nan: what becomes of NaN and the infinite numbers that it leaves in fields, which JSON has not: "reject"
                makes them an error of the document that names the field, "null" makes them null.
            depends: what its answers depend on that its code does not show, so that a run notices a change of it: a
                value, a ``Path`` (the content of a file or folder counts), a list, or a dict of them by name.
            remember: it is called once for each distinct input and version, see ``Remember``. It may only set, change
                and remove fields.
            after: nodes or names it follows; a name may be declared later.
        """
        return self._add(
            StepNode(
                node_name(name),
                _node_names(after),
                fn=fn,
                effect=Effect(effect),
                mutates=mutates,
                timeout=timeout,
                batch=batch,
                batch_bytes=batch_bytes,
                weight=weight,
                arrow=arrow,
                concurrency=concurrency,
                rate=rate,
                needs=capability_names(needs),
                nan=nan,
                depends=named_dependencies(depends),
                remember=remember,
                **error_policy(brake, patience, attempts),
            )
        )

    def route(
        self,
        name: str,
        router: Router,
        *,
        brake: int | None = limits.BRAKE,
        patience: float | str = limits.PATIENCE_S,
        attempts: int | None = None,
        after: Any = None,
    ) -> Handle:
        """A fork: each node that follows is a branch, called by its name, and the router says which ones a document
        takes. ``brake``, ``patience`` and ``attempts`` as for ``step``."""
        policy = error_policy(brake, patience, attempts)
        return self._add(RouterNode(node_name(name), _node_names(after), router=router, **policy))

    def tee(self, name: str, destination: Destination, **policy: Any) -> Handle:
        """A destination in the middle of a path: it gets the document as it is here, and the document goes on
        unchanged, whether it is delivered here or not. Policy as ``Plan.destination``."""
        return self.destination(name, destination, tee=True, **policy)

    def destination(
        self,
        name: str,
        destination: Destination,
        *,
        after: Any = None,
        tee: bool = False,
        errors: bool = False,
        guarantee: Guarantee | str | None = None,
        attempts: int | None = None,
        patience: float | str = limits.PATIENCE_S,
        backoff: float | Iterable[float] | None = None,
        batch: int | None = None,
        batch_bytes: int = limits.BATCH_BYTES,
        deletes: bool = True,
        stale: str = "hold",
        send_timeout: float = limits.SEND_TIMEOUT_S,
        lanes: int | None = None,
    ) -> Handle:
        """Where documents end. The guarantee is by default the best that the destination can keep.

        Args:
            attempts: tries a delivery gets, whatever the error. None: 3; of transient errors as ``patience`` says.
            patience: how long a delivery is tried again that meets transient errors: seconds, or "15m", "2h", "1d".
            backoff: seconds after the first, second, … failed attempt (the last one repeats); the wait is uniform
                between 0 and that. Default 1, 4, 16 … at most an hour.
            batch: rows per chunk at most; default: what the destination prefers, else 500.
            stale: what a new version of a document no longer makes is deleted once all that it makes instead was
                delivered here; if some of that fails, the deletes are held with it. "delete": they are not.
            tee: the document goes on from here; see ``Plan.tee``.
            errors: it gets what failed, and nothing else; see ``Plan.errors``.
            send_timeout: seconds that one call (``check``, ``open``, ``write``, ``close``) may take; one that takes
                longer is given up, and cannot act later: its process is ended.
            lanes: at most so many tasks write to it at once. Default: as many as Spark runs at once, less one where
                other destinations are written to; never more. A ``single_writer`` has one.
        """
        if batch is None:
            batch = getattr(destination, "preferred_batch", None)  # what is not a Destination is refused by check
        waits = None if backoff is None else tuple([backoff] if isinstance(backoff, (int, float)) else backoff)
        policy = Policy(
            guarantee=default_guarantee(destination) if guarantee is None else Guarantee(guarantee),
            attempts=limits.ATTEMPTS if attempts is None else attempts,
            patience_s=patience_seconds(patience) if attempts is None else None,
            backoff=waits,
            batch=limits.BATCH_ROWS if batch is None else batch,
            batch_bytes=batch_bytes,
            deletes=deletes,
            stale=stale,
            send_timeout=send_timeout,
            lanes=lanes,
        )
        return self._add(
            DestinationNode(
                node_name(name), _node_names(after), destination=destination, policy=policy, tee=tee, errors=errors
            )
        )

    def keyed(
        self,
        name: str,
        update: UpdateFunction,
        *,
        key: Key,
        after: Any = None,
        attempts: int | None = None,
        buckets: int = limits.KEY_BUCKETS,
        buffer_bytes: int = limits.KEY_BUFFER_BYTES,
        brake: int | None = limits.BRAKE,
        timeout: float | None = None,
    ) -> Handle:
        """A state for each key, and what follows from its changes. ``update(key, state, documents)`` is called with the
        documents of a wave that have this key, in their order, and returns the new state and what to export; both are
        committed together. State and exports are JSON values and documents.

        What follows this node gets the exports: documents of any id, dicts of fields (their id is the key), and
        ``Document.deletion(id)``. They go on in the order in which a key has made them.

        Args:
            update: state None: there is none. New state None: it is removed. Exports: a document, several, or None. It
                is called before the commit, perhaps more than once: it must not change anything outside.
            key: a field, or a function of the document that returns text. What raises, or has no such field, is an
                error of that document.
            after: nodes or names it follows; a name may be declared later.
            attempts: tries that a document gets of which ``update`` raises; None: 3, of transient errors for a day.
            buckets: into so many ranges keys are hashed: as many tasks at most work on them at once.
            buffer_bytes: bytes of documents that a call gets at most; what is more comes with the next call for the
                key, with the state that this one has returned. A larger document comes alone.
            brake: after so many failing calls in a task without a success ``update`` itself is in trouble: it is
                stopped, and its documents are kept. None: never.
            timeout: seconds a call may take; one that takes longer is interrupted, or its process is ended, and
                counts as one that raises.
        """
        policy = Policy(
            guarantee=Guarantee.EXACTLY_ONCE,
            attempts=limits.ATTEMPTS if attempts is None else attempts,
            patience_s=limits.PATIENCE_S if attempts is None else None,
        )
        return self._add(
            KeyedNode(
                node_name(name),
                _node_names(after),
                destination=KeyedState(),
                policy=policy,
                tee=True,
                update=update,
                key=key,
                buckets=buckets,
                buffer_bytes=buffer_bytes,
                brake=brake,
                timeout=timeout,
                exports=exports_node(name),
            )
        )

    def combine(
        self,
        name: str,
        combiner: Combiner,
        *,
        key: Key,
        value: Value | None = None,
        inverse: Callable[[Any], Any] | None = None,
        after: Any = None,
        **options: Any,
    ) -> Handle:
        """A state for each key that is made by combining values: sums, largest values, sets.

        The values of a wave are combined first, then the result with the state, so ``combiner`` must not depend on
        how values are grouped: ``combiner(k, [combiner(k, [a, b]), c])`` is ``combiner(k, [a, b, c])``. What follows
        gets ``{"key", "old", "new"}`` of each key that has changed, under the key as id; ``old`` is the ``new`` that
        was told before, None the first time.

        Args:
            combiner: ``combiner(key, values)`` returns one value for them: of a wave, then of the state (if there is
                one) and the wave. None of the latter: the key has no state any more.
            key: as ``keyed``.
            value: a field, or a function of the document; None: each document has the value 1.
            inverse: makes of a value the one that undoes it, such as ``operator.neg`` for sums. Needed where documents
                can change or vanish, as of files.
            after: nodes or names it follows; a name may be declared later.
            options: as ``keyed``.
        """
        return self.keyed(name, Combining(combiner, value, inverse), key=key, after=after, **options)

    def state(self, name: str, state: str | Path | None = None) -> KeyStates:
        """The committed states of a keyed node: ``plan.state("counts").get(key)``.

        Args:
            state: the folder of states, as ``ferryman.run`` takes it; default: ``.ferryman`` in the current folder.

        Raises:
            UsageError: the plan has no keyed node of this name.
        """
        names = [node.name for node in keyed_nodes(self.nodes)]
        if name not in names:
            raise UsageError(f"{name} is not a keyed node of this plan. It has: {', '.join(names) or 'none'}.")
        from ferryman.records.keys import KeyStates  # it would make each start slower
        from ferryman.storage.files import path_of

        states = path_of(Path(".ferryman") if state is None else state)
        return KeyStates((states.absolute() if isinstance(states, Path) else states) / self.key, name)

    def errors(self, destination: Destination, *, name: str = "errors", **policy: Any) -> Handle:
        """Where final failures go as messages, most often a ``Queue``: one for each failure of a step, a router or a
        source's ``read``, and for each delivery that a destination refused. The failures are counted as ever, but with
        them here a run ends with 0, and a log goes on behind an entry that failed.

        The fields are ``type`` (of the node that failed: step, router, source, destination), ``cause``, ``where`` (its
        name), ``config`` (plan, version, and the destinations that get nothing) and ``messages`` (a list of what it
        failed for: ``id``, ``source``, and of a log's entry or a refused delivery ``body``, its fields).

        Args:
            name: of the node.
            policy: as ``Plan.destination``.
        """
        return self.destination(name, destination, errors=True, **policy)

    def notify(self, to: str, *, secret: str | None = None, timeout_s: float = limits.NOTIFY_TIMEOUT_S) -> None:
        """Tell somebody, once a run and once a period of ``--every``, when deliveries are newly failed, rejected or in
        doubt, or a node is stopped or unavailable. It is not part of the plan's structure: it may change at any time.

        Args:
            to: an http or https URL, which the digest is posted to as JSON; ``mailto:a@b``, with
                ``?server=host:port&from=c@d`` where neither ``sendmail`` nor this machine's port 25 will do; or a
                command, which gets the JSON on its standard input. ``${NAME}`` is filled in from the environment.
            secret: what is posted is signed with it, as by ``Webhook``; default: the environment variable
                ``FERRYMAN_NOTIFY_SECRET``, if it is set.
            timeout_s: seconds that it may take. What fails or takes longer is reported with the next digest.
        """
        if self._frozen:
            raise PlanError([f"plan {self.name} has run and is frozen: say whom to notify before the run."])
        self._notified.append(NotifyTarget(to, secret, timeout_s))

    def mirror(self, to: Cassandra) -> None:
        """Copy the ledger into Cassandra: every event, in order, into the tables that JesterJ keeps there
        (docs/how-to/mirror-the-ledger-into-cassandra.md).

        A run does it beside its work and never waits for it; what is missing, because Cassandra was away or the run
        ended, the next run sends. It is not part of the plan's structure: it may change at any time.

        Args:
            to: ``Cassandra(hosts)``, without a keyspace: there is one for each source, and for each source and
                destination.
        """
        from ferryman.destinations.cassandra import Cassandra  # most plans do without

        if self._frozen:
            raise PlanError([f"plan {self.name} has run and is frozen: name its mirrors before the run."])
        if not isinstance(to, Cassandra) or to.keyspace is not None:
            raise PlanError([f"mirror({to!r}): give Cassandra(hosts), without a keyspace: a mirror has its own."])
        self._mirrors.append(to)

    @property
    def mirrors(self) -> tuple[Cassandra, ...]:
        """Where ``mirror`` copies the ledger to."""
        return tuple(self._mirrors)

    @property
    def notified(self) -> tuple[NotifyTarget, ...]:
        """Whom ``notify`` named."""
        return tuple(self._notified)

    def check(self) -> list[str]:
        """Refuse a plan that cannot run; return warnings.

        Raises:
            PlanError: every reason found, each naming the node and what to do.
        """
        findings, warnings = check.check(self.name, self.version, self.nodes, once=self.once)
        findings += strategy_findings(self.strategy, self.checkpoint, self.nodes)
        findings += [finding for target in self._notified for finding in target.findings()]
        findings += sorted({f"mirror: {missing}." for each in self._mirrors if (missing := each.not_installed())})
        findings += pickling_findings(self.nodes)
        findings += missing_extra_findings(self.nodes)
        if findings:
            raise PlanError(findings)
        return [*warnings, *forgotten_return_warnings(self.nodes)]

    def freeze(self) -> None:
        """Check it, and let nothing be added any more."""
        self.check()
        self._frozen = True

    @property
    def fingerprint(self) -> str:
        """32 hex digits over structure, step code and what that reaches."""
        return fingerprint(self.nodes)

    def _log_of_input(self, value: Any) -> Any:
        """Return the source that an input names; ``check`` refuses one that is not a log."""
        [name] = _node_names(value) or ("",)
        return next((n.source for n in self._nodes if n.name == name and isinstance(n, SourceNode)), Log())

    def _add(self, node: Node) -> Handle:
        if self._frozen:
            raise PlanError(
                [f"{node.name}: plan {self.name} has run and is frozen: make a new Plan, or add it before the run."]
            )
        self._nodes.append(node)
        return Handle(self, node.name)

    def _repr_svg_(self) -> str:
        """Return the picture that a notebook shows."""
        from ferryman.plan.picture import svg  # it would make each start slower

        return svg(self)

    def __repr__(self) -> str:
        return f"Plan({self.name!r}, version={self.version}, nodes={[n.name for n in self._nodes]})"


class Handle:
    """A node of a plan, to go on from: ``files.step(…).destination(…)``."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan = plan
        self.name = name

    def step(self, name: str, fn: StepFunction, **options: Any) -> Handle:
        """A step after this node; options as ``Plan.step``."""
        return self.plan.step(name, fn, after=self._after(options), **options)

    def route(self, name: str, router: Router, **options: Any) -> Handle:
        """A router after this node."""
        return self.plan.route(name, router, after=self._after(options), **options)

    def tee(self, name: str, destination: Destination, **policy: Any) -> Handle:
        """A tee after this node, to go on from; policy as ``Plan.destination``."""
        return self.plan.tee(name, destination, after=self._after(policy), **policy)

    def destination(self, name: str, destination: Destination, **policy: Any) -> Handle:
        """A destination after this node; policy as ``Plan.destination``."""
        return self.plan.destination(name, destination, after=self._after(policy), **policy)

    def keyed(self, name: str, update: UpdateFunction, **options: Any) -> Handle:
        """A keyed node after this node; options as ``Plan.keyed``."""
        return self.plan.keyed(name, update, after=self._after(options), **options)

    def combine(self, name: str, combiner: Combiner, **options: Any) -> Handle:
        """A combining node after this node; options as ``Plan.combine``."""
        return self.plan.combine(name, combiner, after=self._after(options), **options)

    def _after(self, options: dict[str, Any]) -> tuple[str, ...]:
        return (self.name, *_node_names(options.pop("after", None)))

    def __repr__(self) -> str:
        return f"<node {self.name} of plan {self.plan.name}>"


def _node_names(after: Any) -> tuple[str, ...]:
    if after is None:
        return ()
    if isinstance(after, str) or not isinstance(after, Iterable):
        after = [after]
    return tuple(dict.fromkeys(a.name if isinstance(a, Handle) else node_name(a) for a in after))


# Packages that sources and destinations need, looked for before Spark is started.


def missing_extra_findings(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield a finding for each source and destination that needs a missing package, with the command that installs it.

    Steps raise it themselves when they are created.
    """
    for node in nodes:
        match node:
            case SourceNode(source=Source() as port):
                missing = port.not_installed()
            case DestinationNode(destination=Destination() as port):
                missing = port.not_installed()
            case _:
                continue
        if missing:
            yield f"{node.name}: {missing}."


# Targets of a plan's notifications.

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class NotifyTarget:
    """A target of notifications.

    Attributes:
        to: an http or https URL, ``mailto:ADDRESS``, or a command line.
        secret: what posts to a URL are signed with; ``${NAME}`` in it, and in ``to``, is filled in from the
            environment when a digest is sent.
        timeout_s: seconds that sending a digest may take.
    """

    to: str
    secret: str | None = None
    timeout_s: float = limits.NOTIFY_TIMEOUT_S

    @property
    def kind(self) -> str:
        """``url``, ``mail`` or ``command``."""
        if self.to.lower().startswith(("http://", "https://", "${")):
            return "url"
        return "mail" if self.to.lower().startswith("mailto:") else "command"

    @property
    def redacted(self) -> str:
        """Return the address without passwords."""
        match self.kind:
            case "url":
                return urls.strip_secrets(self.to)
            case "mail":
                return self.to.partition("?")[0]
        return self.to.split()[0] if self.to.split() else self.to

    def findings(self) -> Iterator[str]:
        """Yield the reasons why this target can never be notified, each with the remedy."""
        where = f"notify {self.redacted!r}"
        scheme = _SCHEME.match(self.to)
        if not self.to.strip() or not self.to.isprintable():
            yield f"{where}: give a URL, mailto:ADDRESS or a command, on one line."
        elif self.kind == "url" and "${" not in self.to and not _is_url(self.to):
            yield f"{where}: this is not a URL: correct it."
        elif self.kind == "command" and scheme:
            yield f"{where}: {scheme[1]} is not known here: give an http or https URL, mailto:ADDRESS or a command."
        elif self.kind == "command" and not _is_command(self.to):
            yield f"{where}: a quote is not closed: correct the command."
        elif self.kind == "mail" and "@" not in self.redacted:
            yield f"{where}: give an address, as in mailto:me@example.org."
        if self.secret is not None and (not self.secret or self.kind != "url"):
            yield f"{where}: a secret signs what is posted to a URL: leave it out, or give secret='${{HOOK_SECRET}}'."
        if not 0 < self.timeout_s <= limits.NOTIFY_TIMEOUT_MAX_S:
            yield (
                f"{where}: timeout_s={self.timeout_s!r}: give seconds above 0, at most "
                f"{limits.NOTIFY_TIMEOUT_MAX_S:g}: a run waits for it."
            )


def _is_url(text: str) -> bool:
    try:
        return bool(urls.split(text)[1].hostname)
    except ValueError:
        return False


def _is_command(text: str) -> bool:
    try:
        return bool(shlex.split(text))
    except ValueError:
        return False


# Conversion of a method's arguments to the values that a node holds.


def node_name(value: object) -> str:
    """Return a node's name; another value than text as its repr in angle brackets, which ``check`` refuses."""
    return value if isinstance(value, str) else f"<{value!r}>"


def named_dependencies(depends: Any) -> Depends:
    """Return what a step's ``depends`` gives, each under its name; paths are relative to the plan file."""
    if not isinstance(depends, Mapping):
        each = [] if depends is None else depends if isinstance(depends, list | tuple) else [depends]
        depends = {str(value) if isinstance(value, Path) else str(at): value for at, value in enumerate(each)}
    return Depends(
        {str(name): Path(absolute(value)) if isinstance(value, Path) else value for name, value in depends.items()}
    )


def error_policy(brake: int | None, patience: float | str, attempts: int | None) -> dict[str, Any]:
    """Return the error policy of a node that is called before the commit, as its fields."""
    return {"brake": brake, "patience_s": patience_seconds(patience), "attempts": attempts}


def patience_seconds(value: float | str) -> float:
    """Convert a duration to seconds; return anything else unchanged, for ``check`` to refuse."""
    if not isinstance(value, str):
        return value
    try:
        return limits.seconds(value)
    except ValueError:
        return value  # type: ignore[return-value]


def default_guarantee(destination: Destination) -> Guarantee:
    """Return the strongest guarantee that the destination can keep, by what it declares."""
    if getattr(destination, "transactional", False):
        return Guarantee.EXACTLY_ONCE
    effect = getattr(destination, "effect", None)
    return Guarantee.AT_LEAST_ONCE if effect is Effect.IDEMPOTENT else Guarantee.AT_MOST_ONCE
