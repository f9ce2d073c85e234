"""The walk of one document through the plan, from node to node until its deliveries are staged; also its retry.

A walk is a generator. It does not call steps: it yields a ``StepCall`` and is sent the answer, so that the same code
serves documents that are walked one after the other (``run_walk``), many at once (``concurrent``), and in a child
process (``isolation``).

What an error at a node means is decided when the task has no more documents (``staging``): only then is it known
whether the document or the node is at fault. Until then the walk only records its failures.

``Walk.walk_document`` walks all paths from the source. ``Walk.retry`` repeats the steps up to the nodes at which
members of the family failed, and continues from there, but only to deliveries that are still missing. The repeated part
delivers and drops nothing: members with no failure below them are discarded as soon as they are made, and a router's
earlier choice is used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any, Final, NamedTuple, NoReturn, Protocol, Self

from ferryman import limits
from ferryman.document import Document, RereadRequest, check_size, decode_fields, encode_fields
from ferryman.engine.results import AWAY, ErrorKind, NodeAway, NodeError, Traces, classify_error
from ferryman.engine.transform.calls import CallScope, DocumentStream, ReturnChecker, with_null_for_nan
from ferryman.engine.transform.compiled_nodes import CompiledNode, End, compile_nodes, join_routes, nodes_below
from ferryman.engine.transform.health import NodeHealth
from ferryman.errors import BadDocument, Dropped, PermanentError, Unsupported, plain_text, safe_repr, unless_interrupt
from ferryman.plan import Plan, StepNode, find_source, read_once_sources
from ferryman.records.families import FailedMember, MissingDelivery, ancestry, parent_of

# Values that a walk works with, and the sink that receives its deliveries.


class PlanPath(NamedTuple):
    """Path by which a member reached a node, and the deliveries wanted below that node.

    Attributes:
        route: branches of the copying routers so far.
        branches: choices of the other routers so far.
        wanted: delivery -> its earlier attempts, for each that is still missing; None: make all deliveries, for the
            first time.
    """

    route: str = ""
    branches: str = ""
    wanted: dict[End, MissingDelivery] | None = None

    def into_copy(self, branch: str) -> PlanPath:
        """Return the path extended by a branch of a copying router."""
        return self._replace(route=join_routes(self.route, branch))

    def into_branch(self, router: str, branch: str) -> PlanPath:
        """Return the path extended by the branch that a non-copying router has chosen."""
        return self._replace(branches=join_routes(self.branches, f"{router}={branch}"))

    def wants(self, end: End) -> bool:
        """Return whether this delivery is to be made."""
        return self.wanted is None or end in self.wanted


class MemberFailure(NamedTuple):
    """A family member that failed at a node, and the deliveries missing because of that.

    Attributes:
        doc: the member, reduced to what an event needs.
        owed: the missing deliveries below the node, with their attempts before this one.
    """

    member: str
    doc: Document
    node: str
    route: str
    branches: str
    owed: list[MissingDelivery]
    fault: NodeError


class WalkSink(Protocol):
    """Receives the deliveries, drops and requests of a walk. ``attempt`` counts from 1."""

    def upsert(self, doc: Document, end: End, branches: str, fields: bytes, earlier: MissingDelivery | None) -> None:
        """Stage an upsert of the document; ``earlier``: its earlier attempts, if this is a retry."""

    def drop(self, doc: Document, end: End, branches: str, why: str, attempt: int) -> None:
        """Record that the delivery ends on purpose, as DROPPED."""

    def request_reread(self, doc: Document, request: RereadRequest) -> None:
        """Stage a step's request to read and walk the document's family again later."""

    def savepoint(self) -> Any:
        """Return the current position, for ``roll_back``."""

    def roll_back(self, savepoint: Any) -> None:
        """Remove all that was staged since the savepoint."""


# What a walk asks of the code that runs it.


class StepCall(NamedTuple):
    """Request to call a step with a document; answered with what the step returned, or with ``Raised``."""

    node: CompiledNode
    doc: Document


class Raised(NamedTuple):
    """Answer for a call that raised an exception."""

    error: BaseException
    trace: TracebackType | None = None
    """Traceback to raise it with; None: its own. For an error that several documents get."""

    def throw(self) -> NoReturn:
        """Raise the exception."""
        raise self.error if self.trace is None else self.error.with_traceback(self.trace)


class WalkMember(NamedTuple):
    """Request to walk a document that a step made of the current one, now or as soon as possible.

    Attributes:
        begin: begins the walk of the member.
    """

    begin: Callable[[Walk], Walking]


class AwaitMembers(NamedTuple):
    """Request to wait until the requested walks of members have ended and their outcomes are staged in order."""


Request = StepCall | WalkMember | AwaitMembers

Walking = Generator[Request, Any, None]
"""A walk that is under way."""

_AWAIT_MEMBERS: Final = AwaitMembers()
NOT_CALLED: Final = object()
"""In place of an answer: the node was not called for the document."""


def run_walk(walk: Walk, walking: Walking, before_call: Callable[[], None] = lambda: None) -> None:
    """Run a walk to its end: call each step at once, and walk each member to its end before the next.

    Args:
        before_call: called before each call of a step. What it raises ends the walk.
    """
    try:
        request = next(walking)
        while True:
            answer: Any = None
            if type(request) is StepCall:
                before_call()
                answer = call_step(request)
            elif type(request) is WalkMember:
                run_walk(walk, request.begin(walk), before_call)
            request = walking.send(answer)
    except StopIteration:
        pass


def call_step(request: StepCall) -> Any:
    """Call the step, and return the answer to the request."""
    assert request.node.step is not None
    began = perf_counter()
    try:
        return request.node.step(request.doc)
    except BaseException as e:  # the walk interprets it
        return Raised(e)
    finally:
        request.node.took_s += perf_counter() - began


class Walk:
    """Walks documents of one source through the plan, one after the other.

    Args:
        task: number of the task in its wave; see ``Router.open``.
        prepare_step: returns the function that is called for a step.
        health: node -> its health in this task.

    Attributes:
        source: node at which documents begin.
        row: row of the current document in its task.
        batch: batch of the source that the document belongs to; "": none.
        traces: collects the tracebacks that this task keeps.
        on_error: called with the id of each document that fails, and with the error.
        new_failures: failures of the current document's family in this walk.
        ended_failures: earlier failures of the family that are final, so a retry skips them.
        reached: earlier failures at whose nodes the last ``retry`` arrived and continued.
        unneeded: members that the last ``retry`` dropped as soon as they were made, since no failure is below them.
    """

    def __init__(
        self,
        plan: Plan,
        source: str,
        sink: WalkSink,
        *,
        task: int,
        prepare_step: Callable[[StepNode], Callable[..., Any]],
        health: Mapping[str, NodeHealth],
    ) -> None:
        self._sink = sink
        self._drops_unsupported = _drops_unsupported(plan, source)
        self._nodes = compile_nodes(plan.nodes, task, prepare_step)
        self.source = self._nodes[find_source(plan.nodes, source).entry]
        self._counted_once = source in read_once_sources(plan.nodes)
        self.call_scope = CallScope(plan, source)
        self.set_health(health)
        self._return_checker = ReturnChecker(self._note_reread_request)
        self.traces = Traces()
        self.on_error: Callable[[str, NodeError], None] | None = None
        self.row = 0
        self.batch = ""
        self.new_failures: list[MemberFailure] = []
        self.ended_failures: list[FailedMember] = []
        self.reached: list[FailedMember] = []
        self.unneeded: list[str] = []
        self._origin = ""
        self._retrying = False
        self._unreported: set[tuple[str, End]] = set()
        """(id, end) of the missing deliveries of a retry for which nothing has been staged yet."""

    def set_health(self, health: Mapping[str, NodeHealth]) -> None:
        """Use this health of the nodes from now on."""
        for node in self._nodes.values():
            node.health = health.get(node.name)

    def may_reach(self, names: Collection[str]) -> bool:
        """Return whether a document may reach one of these nodes."""
        return any(node.name in names for node in nodes_below(self.source))

    def step_seconds(self) -> Counter[str]:
        """Return step -> seconds that this task has spent in its calls."""
        seconds: Counter[str] = Counter()
        for node in self._nodes.values():
            seconds[node.name] += node.took_s  # type: ignore[assignment]
        return seconds

    def fork(self, sink: WalkSink) -> Self:
        """Return a walk over the same nodes with another sink: for another document, or for a member of this one's
        family."""
        walk = type(self).__new__(type(self))  # made for each document: takes a quarter of the time of copy.copy
        walk.__dict__.update(self.__dict__)
        walk._sink = sink
        walk.call_scope = self.call_scope.copy()
        walk._return_checker = self._return_checker.fork(walk._note_reread_request)
        walk.new_failures, walk.ended_failures, walk.reached, walk.unneeded = [], [], [], []
        return walk

    def merge(self, member: Self) -> None:
        """Add the outcome of a member's walk to this one's."""
        self.new_failures += member.new_failures
        self.reached += member.reached
        self.unneeded += member.unneeded
        self._return_checker.merge(member._return_checker)

    # -- whole documents ---------------------------------------------------------------------------

    def walk_document(self, doc: Document) -> Walking:
        """Walk the document along all its paths, for the first time."""
        self._begin(doc.id, retrying=False)
        yield from self._walk_from(doc, self.source.next, PlanPath())

    def resume(
        self,
        id: str,
        doc: Document,
        node: CompiledNode | None,
        path: PlanPath,
        answer: Any,
        ahead: Iterable[tuple[Document, CompiledNode, PlanPath]],
    ) -> Walking:
        """Continue the first walk of a document at this node.

        Args:
            answer: the node's answer, or ``Raised``; ``NOT_CALLED``: the node was not called.
            ahead: copies of the document that are walked afterwards, each from its node.
        """
        self._begin(id, retrying=False)
        yield from self._walk_from(doc, node, path, answer)
        for each, each_node, each_path in ahead:
            yield from self._walk_from(each, each_node, each_path)

    def drop_by_source(self, doc: Document, why: str) -> Walking:
        """Record the document as dropped by its source, before any step."""
        self._begin(doc.id, retrying=False)
        self._drop(doc, self.source.ends_from(""), PlanPath(), why)
        yield from ()

    def retry(self, doc: Document, failures: Sequence[FailedMember]) -> Walking:
        """Repeat the walk of a document, but only on paths to deliveries that are still missing."""
        open_failures = self._begin_retry(doc.id, failures)
        yield from self._replay(doc, self.source, PlanPath(), [f for f in open_failures if self.leads_to(f)])
        for failure in open_failures:
            if not self.leads_to(failure):
                self._end_lost(failure)
        self._supersede(open_failures)

    def leads_to(self, failure: FailedMember) -> bool:
        """Return whether the plan, which may have changed, still leads to this failure, and from there to all that is
        missing because of it."""
        choices = dict(choice.partition("=")[::2] for choice in failure.branches.split("/"))
        node: CompiledNode | None = self.source
        route = ""
        while node is not None and (node.name, route) != (failure.node, failure.route):
            if node.router is None:
                node = node.next
            elif node.router.copies:
                branch = failure.route[len(route) :].lstrip("/").partition("/")[0]
                route, node = join_routes(route, branch), node.branches.get(branch)
            else:
                node = node.branches.get(choices.get(node.name, ""))
        return node is not None and {o.end for o in failure.owed if o.open}.issubset(node.ends_from(route))

    def walk_unread(self, doc: Document, fault: NodeError, failures: Sequence[FailedMember] | None) -> Walking:
        """Record a document that could not be read as failed; ``failures``: in a retry, the earlier failures of the
        same version."""
        yield from ()
        if failures is None:
            self._begin(doc.id, retrying=False)
            self._record_failure(doc, self.source, PlanPath(), fault)
        else:
            self._keep_failures(self._begin_retry(doc.id, failures), fault)

    def _begin(self, id: str, *, retrying: bool) -> None:
        self._origin = id
        self._retrying = retrying
        if self.new_failures or self.ended_failures or self.reached or self.unneeded:
            self.new_failures, self.ended_failures, self.reached, self.unneeded = [], [], [], []
        self._return_checker.clear()

    def _begin_retry(self, id: str, failures: Sequence[FailedMember]) -> list[FailedMember]:
        """Return the failures to retry, and keep the final ones in ``ended_failures``."""
        self._begin(id, retrying=True)
        self.ended_failures += [_ended_part(f) for f in failures if not all(o.open for o in f.owed)]
        self._unreported = {(id + f.member, o.end) for f in failures for o in f.owed if o.open}
        return [f for f in failures if f.open]

    # -- from a node on ----------------------------------------------------------------------------

    def _walk_from(self, doc: Document, node: CompiledNode | None, path: PlanPath, answer: Any = NOT_CALLED) -> Walking:
        """Walk the document from this node on, for the first time; ``answer``: see ``resume``."""
        while node is not None:
            if path.wanted is not None and path.wanted.keys().isdisjoint(node.ends_from(path.route)):
                return
            if doc.refused is not None:
                self._refuse(doc, node, path)
                return
            if node.is_called and answer is NOT_CALLED and self._is_closed(node):
                self._record_failure(doc, node, path, held_error(node))
                return
            if node.step is not None:
                id = doc.id
                if answer is NOT_CALLED:
                    answer = yield self._step_call(node, doc, path.route)
                try:
                    out = self._check_answer(node, doc, id, path.route, answer)
                except Dropped as e:
                    self._drop_for(e, doc, node, path)
                    return
                except BaseException as e:
                    self._fail(doc, node, path, unless_interrupt(e))
                    return
                if (itself := only_itself(out, doc)) is None:
                    yield from self._walk_several(doc, out, node, path)
                    return
                doc = itself
            elif node.delivers:
                self._deliver(doc, node, path)
            elif node.router is not None:
                try:
                    chosen = self._choose_branches(doc, node, answer)
                    copies = [doc.copy() for _ in chosen[1:]] if node.router.copies else []
                except BaseException as e:
                    self._fail(doc, node, path, unless_interrupt(e))
                    return
                self._drop_not_chosen(doc, node, chosen, path)
                if node.router.copies:
                    for name, each in zip(chosen, [*copies, doc], strict=True):
                        yield from self._walk_from(each, node.branches[name], path.into_copy(name))
                    return
                path = path.into_branch(node.name, chosen[0])
                node, answer = node.branches[chosen[0]], NOT_CALLED
                continue
            node, answer = node.next, NOT_CALLED

    def _walk_several(
        self,
        doc: Document,
        out: Sequence[Document] | DocumentStream,
        node: CompiledNode,
        path: PlanPath,
    ) -> Walking:
        """Walk all documents that a step made of one document."""
        if isinstance(out, DocumentStream):
            yield from self._walk_many(doc, out, node, path)
        else:
            yield from self._walk_each(doc, out, node, path)

    def _walk_each(self, doc: Document, out: Iterable[Document], node: CompiledNode, path: PlanPath) -> Walking:
        """Walk the documents that a step returned: the document itself, and its children."""
        if not node.steps_below:  # no walk of a member has to wait
            for each in out:
                yield from self._walk_from(each, node.next, _member_path(doc, each, path))
            return
        for each in out:
            yield _member_walk(doc, each, node, path)
        yield _AWAIT_MEMBERS

    def _walk_many(self, doc: Document, stream: DocumentStream, node: CompiledNode, path: PlanPath) -> Walking:
        """Walk more documents than fit in memory, while the step is still producing them.

        If the step fails later, everything staged for these documents is rolled back: the call has no effect.
        """
        savepoint, before = self._sink.savepoint(), len(self.new_failures)
        self._return_checker.begin(stream)
        itself: list[Document] = []
        fault: NodeError | None = None
        error: BaseException | None = None
        while fault is None:
            try:
                each = self._next_document(stream, node)
            except BaseException as e:
                error = unless_interrupt(e)
                break
            if each is None:
                break
            if each is doc:
                itself.append(each)  # walked last: the step may still use it
                continue
            yield _member_walk(doc, each, node, path)
            fault = self._fault_if_many_wait(before)
        yield _AWAIT_MEMBERS
        fault = fault or self._fault_if_many_wait(before)
        if error is None and fault is None:
            self._return_checker.end(failed=False)
            yield from self._walk_each(doc, itself, node, path)
            return
        self._return_checker.end(failed=True)
        self._sink.roll_back(savepoint)
        del self.new_failures[before:]
        if fault is not None:
            self._record_failure(doc, node, path, fault)
        elif isinstance(error, Dropped):
            self._drop_for(error, doc, node, path)
        else:
            assert error is not None
            self._fail(doc, node, path, error)

    def _fault_if_many_wait(self, before: int) -> NodeError | None:
        """Return a single error for the whole family if too many members wait for a node to record each; None: there
        are few enough.

        Args:
            before: number of failures recorded before these members were walked.
        """
        if len(self.new_failures) - before < limits.WAITING_MEMBERS or self.new_failures[-1].fault.kind not in AWAY:
            return None
        return self.new_failures[-1].fault

    def _step_call(self, node: CompiledNode, doc: Document, route: str) -> StepCall:
        """Return the request for a step's call; until its answer is checked, the document has an idempotency key."""
        self.call_scope.step, self.call_scope.route = node.name, route
        return StepCall(node, doc)

    def _check_answer(
        self, node: CompiledNode, doc: Document, id: str, route: str, answer: Any
    ) -> Sequence[Document] | DocumentStream:
        """Return the documents that a step made, at least one; they belong to the document's family.

        Raises whatever the step raised, also while it produces its documents.

        Args:
            id: id of the document before the call.
        """
        assert node.health is not None
        try:
            try:
                if type(answer) is Raised:
                    answer.throw()
            finally:
                doc.id = id  # its id is the source's, whatever a step does to the object
                self._note_reread_request(doc)
            if node.nan_is_null:
                answer = with_null_for_nan(answer)
            if answer is doc:
                documents: Sequence[Document] | DocumentStream | None = (doc,)
            else:
                began = perf_counter()
                documents = None if answer is None else self._return_checker.check(doc, node.label, route, answer)
                node.took_s += perf_counter() - began  # a generator runs only now
        except (Dropped, Unsupported) as e:
            raise self._as_drop(e, node.health) from None
        finally:
            self.call_scope.step = ""
        if documents is None:
            node.health.note_drop(silently=True)
            raise Dropped
        if not node.health.steady and not isinstance(documents, DocumentStream):
            node.health.note_return()
        return documents

    def _next_document(self, stream: DocumentStream, node: CompiledNode) -> Document | None:
        """Return the next document of a stream that the step is producing; None: there are no more."""
        assert node.health is not None
        self.call_scope.step, self.call_scope.route = node.name, stream.route
        began = perf_counter()
        try:
            each = stream.next()
        except (Dropped, Unsupported) as e:
            raise self._as_drop(e, node.health) from None
        finally:
            self.call_scope.step = ""
            node.took_s += perf_counter() - began
        if each is None and not node.health.steady:
            node.health.note_return()
        return each

    def _note_reread_request(self, doc: Document) -> None:
        if (request := doc.asked_again) is None:
            return
        if self._counted_once:
            raise PermanentError("again(): entries of a log are not read again where a keyed node counts them.")
        self._sink.request_reread(doc, request)

    def _choose_branches(self, doc: Document, node: CompiledNode, answer: Any) -> list[str]:
        """Return the branches that the router chooses; ``answer``: see ``resume``."""
        assert node.router is not None
        if type(answer) is Raised:
            answer.throw()
        if answer is NOT_CALLED:
            id = doc.id
            try:
                answer = node.router.choose(doc)
            finally:
                doc.id = id
        chosen = self.check_branches(node, answer)
        if node.health is not None and not node.health.steady:
            node.health.note_success()
        return chosen

    def check_branches(self, node: CompiledNode, answer: Any) -> list[str]:
        """Return the branches that a router's answer names, at least one.

        Raises:
            PermanentError: the answer is wrong.
        """
        assert node.router is not None
        several = node.router.copies and not isinstance(answer, str)
        chosen: list[Any] = list(answer) if several else [answer]
        for name in chosen:
            if name not in node.branches:
                raise PermanentError(
                    f"chose {safe_repr(name)}, which is not one of its branches {', '.join(node.branches)}"
                )
        if len(set(chosen)) < len(chosen):
            raise PermanentError(f"chose a branch twice: {', '.join(chosen)}")
        if not chosen:
            raise PermanentError("chose no branch: to drop a document, return None in a step")
        return chosen

    # -- outcomes of a member ----------------------------------------------------------------------

    def _deliver(self, doc: Document, node: CompiledNode, path: PlanPath) -> None:
        end = (node.name, path.route)
        earlier = None
        if path.wanted is not None:
            if end not in path.wanted:
                return
            earlier = path.wanted[end]
        try:
            fields = encode_fields(doc.fields)
            if doc.raw is not None and not isinstance(doc.raw, bytes):
                raise PermanentError(f"{doc.id} has a {type(doc.raw).__name__} as raw, which must be bytes or None")
            check_size(fields, doc.raw)
            if node.accepts is not None:  # a copy, as it will be stored: the check may change it
                node.accepts(Document.of(doc.id, decode_fields(fields), doc.raw))
        except BaseException as e:
            wanted = {end: MissingDelivery(*end, 0) if earlier is None else earlier}
            self._fail(doc, node, path._replace(wanted=wanted), unless_interrupt(e))
            return
        if self._retrying:
            self._unreported.discard((doc.id, end))
        self._sink.upsert(doc, end, path.branches, fields, earlier)

    def _refuse(self, doc: Document, node: CompiledNode, path: PlanPath) -> None:
        """Handle a child that a step could not make: record it as failed, or as dropped if the source drops unsupported
        documents."""
        error = doc.refused if isinstance(doc.refused, Unsupported) else BadDocument(plain_text(doc.refused))
        if isinstance(error, Unsupported) and self._drops_unsupported:
            self._drop_for(Dropped(plain_text(error)), doc, node, path)
        else:
            self._fail(doc, node, path, error)

    def _as_drop(self, error: Dropped | Unsupported, health: NodeHealth) -> Dropped | Unsupported:
        """Return the error to raise for a document that a step dropped or does not support: ``Dropped``, also for an
        unsupported document if its source drops these; otherwise the ``Unsupported``."""
        if isinstance(error, Unsupported) and not self._drops_unsupported:
            return error
        health.note_drop()
        return error if isinstance(error, Dropped) else Dropped(plain_text(error))

    def _drop_for(self, error: Dropped, doc: Document, node: CompiledNode, path: PlanPath) -> None:
        """Drop the document for a step's error."""
        self._drop(doc, node.ends_from(path.route), path, plain_text(error) or f"dropped by {node.label}")

    def _drop(self, doc: Document, below: Iterable[End], path: PlanPath, why: str) -> None:
        for end in below:
            if path.wants(end):
                if self._retrying:
                    self._unreported.discard((doc.id, end))
                self._sink.drop(doc, end, path.branches, why, 1 + (path.wanted[end].attempt if path.wanted else 0))

    def _drop_not_chosen(self, doc: Document, node: CompiledNode, chosen: list[str], path: PlanPath) -> None:
        """Drop the deliveries that are reached only by branches which were not chosen."""
        if below := ends_not_chosen(node, chosen, path):
            self._drop(doc, below, path, not_chosen_message(node, chosen))

    def _is_closed(self, node: CompiledNode) -> bool:
        """Return whether this node is in trouble, so that it must not be called for the current family."""
        health = node.health
        if health is None or not health.closed:
            return False
        return not health.allows(self._origin, self.row)

    def _fail(self, doc: Document, node: CompiledNode, path: PlanPath, error: BaseException) -> None:
        """Record the error of a call, and drop its traceback, whose frames hold the error: such a cycle keeps errors
        with long messages in memory until Python collects garbage."""
        self._record_failure(doc, node, path, self._classify(node, error))
        BaseException.with_traceback(error, None)  # whatever its class makes of these names

    def _classify(self, node: CompiledNode, error: BaseException) -> NodeError:
        if isinstance(error, NodeAway):
            return held_error(node)
        fault = classify_error(error, node.name, node.label, traces=self.traces)
        if self.on_error is not None:
            self.on_error(self._origin, fault)
        if node.health is not None:
            node.health.note_failure(fault, self._origin, self.row, self.batch, again=self._retrying)
        return fault

    def _record_failure(self, doc: Document, node: CompiledNode, path: PlanPath, fault: NodeError) -> None:
        """Record a failure of the document at this node; its walk ends here for now."""
        ends, wanted = node.ends_from(path.route), path.wanted
        owed = (
            [MissingDelivery(*end, 0) for end in ends] if wanted is None else [wanted[e] for e in ends if e in wanted]
        )
        if self._retrying:
            self._unreported.difference_update((doc.id, o.end) for o in owed)
        member = self._member_name(doc.id)
        stub = self._member_stub(member)
        self.new_failures.append(MemberFailure(member, stub, node.name, path.route, path.branches, owed, fault))

    def _member_name(self, id: str) -> str:
        return id[len(self._origin) :]

    def _member_stub(self, member: str) -> Document:
        """Return a member of the family by name, with what an event needs and nothing that a step has set."""
        stub = Document.of(self._origin + member, {})
        stub.origin_id = self._origin
        stub.parent_id = parent_of(stub.id) if member else None
        return stub

    # -- replay to earlier failures ----------------------------------------------------------------

    def _replay(
        self, doc: Document, node: CompiledNode | None, path: PlanPath, failures: list[FailedMember]
    ) -> Walking:
        """Repeat the walk of a member up to the nodes at which it or its descendants failed, and continue from
        there."""
        member = self._member_name(doc.id)
        while node is not None and failures:
            # a member may have failed at several nodes: the walk continues from each, with a copy of the document for
            # all but the last
            failed_here = [f for f in failures if (f.member, f.node, f.route) == (member, node.name, path.route)]
            if failed_here:
                failures = [f for f in failures if f not in failed_here]
                try:
                    doc_here = doc.copy() if failures else doc
                except BaseException as e:
                    self._keep_failures([*failed_here, *failures], self._classify(node, unless_interrupt(e)))
                    return
                self.reached += failed_here
                wanted = {o.end: o for f in failed_here for o in f.owed if o.open}
                below = PlanPath(path.route, failed_here[0].branches, wanted)
                yield from self._walk_from(doc_here, node.next if node is self.source else node, below)
                if not failures:
                    return
            if node.step is not None:
                if self._is_closed(node):
                    self._keep_failures(failures, held_error(node))
                    return
                id = doc.id
                answer = yield self._step_call(node, doc, path.route)
                try:
                    out = self._check_answer(node, doc, id, path.route, answer)
                    itself = only_itself(out, doc)
                    members = self._members_to_retry(out, node, failures) if itself is None else {}
                except Dropped:
                    return
                except BaseException as e:
                    self._keep_failures(failures, self._classify(node, unless_interrupt(e)))
                    return
                if itself is None:
                    yield from self._replay_each(members, node, path, failures)
                    return
                doc = itself
            elif node.router is not None:
                if node.router.copies:
                    yield from self._replay_copies(doc, node, path, failures)
                    return
                branch = _earlier_branch(failures[0].branches, node)
                path = path.into_branch(node.name, branch.name)
                node = branch
                continue
            node = node.next

    def _replay_copies(
        self, doc: Document, node: CompiledNode, path: PlanPath, failures: list[FailedMember]
    ) -> Walking:
        """Replay each branch of a copying router below which this member failed."""
        for name, branch in node.branches.items():
            branch_path = path.into_copy(name)
            route = branch_path.route
            if below := [f for f in failures if f.route == route or f.route.startswith(f"{route}/")]:
                try:
                    copy = doc.copy()
                except BaseException as e:
                    self._keep_failures(below, self._classify(node, unless_interrupt(e)))
                else:
                    yield from self._replay(copy, branch, branch_path, below)

    def _members_to_retry(
        self, out: Sequence[Document] | DocumentStream, node: CompiledNode, failures: list[FailedMember]
    ) -> dict[str, Document]:
        """Return the members among a step's documents that have failures at or below them; the others are recorded as
        unneeded."""
        wanted = {member for failure in failures for member in ancestry(failure.member)}
        found, unneeded = {}, []
        for each in iter(partial(self._next_document, out, node), None) if isinstance(out, DocumentStream) else out:
            member = self._member_name(each.id)
            if member in wanted:
                found[member] = each
            else:
                unneeded.append(member)
        self.unneeded += unneeded
        return found

    def _replay_each(
        self,
        members: Mapping[str, Document],
        node: CompiledNode,
        path: PlanPath,
        failures: list[FailedMember],
    ) -> Walking:
        """Replay the members that failures belong to. A failure belongs to its nearest ancestor among the members, so
        to the member itself if it is one."""
        by_member: dict[str, list[FailedMember]] = {}
        for failure in failures:
            nearest = next((m for m in ancestry(failure.member) if m in members), None)
            if nearest is not None:
                by_member.setdefault(nearest, []).append(failure)
        for member, each in members.items():
            if member in by_member:
                yield _member_replay(each, node, path, by_member[member])
            else:
                self.unneeded.append(member)
        yield _AWAIT_MEMBERS

    def _keep_failures(self, failures: list[FailedMember], fault: NodeError) -> None:
        """Keep these failures because the replay failed; the next retry tries to reach the same nodes."""
        for failure in failures:
            member = self._member_stub(failure.member)
            open_owed = [o for o in failure.owed if o.open]
            self._unreported.difference_update((member.id, o.end) for o in open_owed)
            self.new_failures.append(
                MemberFailure(failure.member, member, failure.node, failure.route, failure.branches, open_owed, fault)
            )

    def _end_lost(self, failure: FailedMember) -> None:
        """Record that a failure to which the plan does not lead any more is final, except at destinations that are
        gone."""
        member = self._member_stub(failure.member)
        owed = [o for o in failure.owed if o.open and o.destination in self._nodes]
        if owed:
            self._unreported.difference_update((member.id, o.end) for o in owed)
            why = f"{failure.node}, at which it had failed, is not there in the plan any more: put it back, and retry"
            fault = NodeError(ErrorKind.PERMANENT, failure.node, why)
            self.new_failures.append(
                MemberFailure(failure.member, member, failure.node, failure.route, failure.branches, owed, fault)
            )

    def _supersede(self, failures: list[FailedMember]) -> None:
        """Record as DROPPED the missing deliveries that this retry should have produced but did not."""
        for failure in failures:
            member = self._member_stub(failure.member)
            missing = [o for o in failure.owed if o.open and (member.id, o.end) in self._unreported]
            for o in missing:
                why = "superseded: the retry did not produce it again"
                self._sink.drop(member, o.end, failure.branches, why, o.attempt)


def only_itself(out: Sequence[Document] | DocumentStream, doc: Document) -> Document | None:
    """Return the document that a step was called for, if the step returned it and nothing else."""
    return out[0] if not isinstance(out, DocumentStream) and len(out) == 1 and out[0].id == doc.id else None


def ends_not_chosen(node: CompiledNode, chosen: list[str], path: PlanPath) -> list[End]:
    """Return the deliveries below a router that can be reached only through branches it did not choose."""
    assert node.router is not None
    if len(chosen) == len(node.branches):
        return []
    copies = node.router.copies
    reached = {
        end
        for name in chosen
        for end in node.branches[name].ends_from(path.into_copy(name).route if copies else path.route)
    }
    return [end for end in node.ends_from(path.route) if end not in reached]


def not_chosen_message(node: CompiledNode, chosen: list[str]) -> str:
    """Return the ledger's text for deliveries that no branch accepted."""
    return f"not its branch: {node.label} sent it to {', '.join(chosen)}"


def _drops_unsupported(plan: Plan, source: str) -> bool:
    """Return whether documents that no step reads are dropped."""
    return find_source(plan.nodes, source).source.unsupported == "skip"


def held_error(node: CompiledNode) -> NodeError:
    """Return the error for a document held because its node is unavailable."""
    assert node.health is not None
    return NodeError(ErrorKind.HELD, node.name, f"waits for {node.label}, which {node.health.why}")


def _member_walk(doc: Document, member: Document, node: CompiledNode, path: PlanPath) -> WalkMember:
    """Return the request to walk a document returned by a step."""
    member_path = _member_path(doc, member, path)
    return WalkMember(lambda walk: walk._walk_from(member, node.next, member_path))


def _member_path(doc: Document, member: Document, path: PlanPath) -> PlanPath:
    """Return the path of a document returned by a step: the document itself, or a new child, whose deliveries had no
    attempts yet."""
    if path.wanted is None or member.id == doc.id:
        return path
    return path._replace(wanted={end: MissingDelivery(*end, 0) for end in path.wanted})


def _member_replay(member: Document, node: CompiledNode, path: PlanPath, failures: list[FailedMember]) -> WalkMember:
    """Return the replay of a member below this node, to the nodes at which it or its descendants failed."""
    return WalkMember(lambda walk: walk._replay(member, node.next, path, failures))


def _ended_part(failure: FailedMember) -> FailedMember:
    """Return the part of a failure that is final, kept so that an operator can reopen it."""
    ended = [o for o in failure.owed if not o.open]
    return FailedMember(failure.member, failure.node, failure.route, failure.branches, ended)


def _earlier_branch(branches: str, node: CompiledNode) -> CompiledNode:
    """Return the branch that a router chose in the earlier walk."""
    assert node.router is not None
    choices = dict(choice.partition("=")[::2] for choice in branches.split("/"))
    return node.branches[choices[node.name]]
