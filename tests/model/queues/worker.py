"""Workers: how a task appends its chunks to a queue, each row once, whoever else appends meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.queues.actions import QueueStep
from tests.model.queues.world import OUT, Chunk, Fold, Lane, Message, QueueConfig, QueueLog, Result, State, Worker
from tests.model.state import OUTBOX

Moves = Iterator[tuple[QueueStep, State]]


def begin(state: State, lane: Lane, pass_: int, epoch: int) -> State:
    """A task starts; it passes over what an earlier attempt has published."""
    done = {n for r in state.results if r.pass_ == pass_ for n in (*r.fold.appended, *r.fold.refused)}
    chunks = tuple(chunk for chunk in lane.chunks if not set(chunk) <= done)
    return _add(state, Worker(pass_, epoch, lane.into, "look", chunks)) if chunks else state


def worker_moves(config: QueueConfig, state: State, worker: Worker) -> Moves:
    """What this worker may do next."""
    alone = leave(state, worker)
    match worker.at:
        case "look":
            yield QueueStep("append.look", _name(worker)), _look(alone, worker)
        case "read":
            yield QueueStep("append.read", _name(worker)), _add(alone, _read(config, state, worker))
        case "append":
            yield from _append(config, alone, worker)
        case "noted":
            noted = _with_queue(alone, worker.into, _noted(alone, worker, worker.new))
            yield QueueStep("append.noted", _name(worker)), _answered(config, noted, worker)
        case "publish":
            yield QueueStep("publish", _name(worker)), _publish(alone, worker)


def without_idle(state: State) -> State:
    """Without workers that can do nothing any more that anybody sees: so many states less, and no other outcome."""
    left = tuple(worker for worker in state.workers if not _is_idle(state, worker))
    return state if len(left) == len(state.workers) else state._replace(workers=left)


def _is_idle(state: State, worker: Worker) -> bool:
    if worker.at == "publish" or (worker.at == "look" and state.closed >= worker.pass_):
        return worker.pass_ <= state.settled[OUTBOX] or worker.done == Fold()
    return False


def leave(state: State, worker: Worker) -> State:
    """The world without this worker."""
    at = state.workers.index(worker)
    return state._replace(workers=state.workers[:at] + state.workers[at + 1 :])


def _name(worker: Worker) -> str:
    return f"worker of pass {worker.pass_} at queue {worker.into}"


def _look(state: State, worker: Worker) -> State:
    """Call the queue only while the pass is open."""
    if state.closed >= worker.pass_:
        return _end(state, worker)
    return _add(state, worker._replace(at="read"))


def _read(config: QueueConfig, state: State, worker: Worker) -> Worker:
    """The newest version of the queue, and which rows of the chunk it does not have."""
    queue = state.queues[worker.into]
    mine = queue.highest if queue.writer == _writer(config, worker) else -1
    known = {m.sequence for m in queue.messages}
    if config.mutation == "a repeated row is looked for in the newest message only":
        known = {m.sequence for m in queue.messages[-1:]}
    if config.mutation == "an append does not look at what its writer has noted":
        mine = -1
    chunk = [n for n in worker.chunks[0] if n > mine or n not in known]
    if worker.into == OUT:
        chunk = [n for n in chunk if state.rows[n].entry not in config.refused]
    return worker._replace(at="append", seen=len(queue.messages), new=tuple(chunk))


def _append(config: QueueConfig, state: State, worker: Worker) -> Moves:
    queue, name = state.queues[worker.into], _name(worker)
    if state.budget.faults and "down" in config.answers:
        yield QueueStep("append.down", name), _unanswered(config, _spent(state), worker)
    blind = config.mutation == "an append that was beaten does not read the queue again"
    if worker.new and len(queue.messages) != worker.seen and not blind:
        yield QueueStep("append.beaten", name), _add(state, worker._replace(at="read"))
        return
    after = _with_queue(state, worker.into, _longer(config, state, worker))
    if config.mutation == "the highest sequence is noted after the append" and worker.new:
        yield QueueStep("append", name), _add(after, worker._replace(at="noted"))
        return
    yield QueueStep("append", name), _answered(config, after, worker)
    if state.budget.faults and "lost" in config.answers:
        yield QueueStep("append.lost", name), _unanswered(config, _spent(after), worker)


def _longer(config: QueueConfig, state: State, worker: Worker) -> QueueLog:
    """One entry of the queue's log: the messages, and the highest sequence of their writer."""
    queue = state.queues[worker.into]
    if not worker.new:
        return queue
    said = tuple(Message(n, state.rows[n].entry if n < len(state.rows) else -1) for n in worker.new)
    queue = queue._replace(messages=queue.messages + said)
    if config.mutation == "the highest sequence is noted after the append":
        return queue
    return queue._replace(writer=_writer(config, worker), highest=max(queue.highest, *worker.new))


def _noted(state: State, worker: Worker, new: Chunk) -> QueueLog:
    queue = state.queues[worker.into]
    return queue._replace(highest=max(queue.highest, *new))


def _writer(config: QueueConfig, worker: Worker) -> int:
    return worker.epoch if config.mutation == "each driver appends under a name of its own" else 0


def _answered(config: QueueConfig, state: State, worker: Worker) -> State:
    """The worker knows what became of its chunk."""
    chunk = worker.chunks[0]
    refused = tuple(n for n in chunk if worker.into == OUT and state.rows[n].entry in config.refused)
    appended = tuple(n for n in chunk if n not in refused)
    done = Fold(worker.done.appended + appended, worker.done.refused + refused)
    worker = worker._replace(chunks=worker.chunks[1:], done=done, seen=-1, new=())
    return _add(state, worker._replace(at="look")) if worker.chunks else _end(state, worker)


def _unanswered(config: QueueConfig, state: State, worker: Worker) -> State:
    """The queue is away: no attempt is spent, and the lane ends here."""
    if config.mutation == "an append without an answer counts as done":
        return _answered(config, state, worker)
    if config.mutation == "a lane goes on behind a chunk that was not taken" and worker.chunks[1:]:
        return _add(state, worker._replace(at="look", chunks=worker.chunks[1:], seen=-1, new=()))
    return _end(state, worker)


def _end(state: State, worker: Worker) -> State:
    if worker.done == Fold():
        return state
    return _add(state, worker._replace(at="publish", chunks=(), seen=-1, new=()))


def _publish(state: State, worker: Worker) -> State:
    """Without the folder of its pass it fails."""
    if worker.pass_ <= state.settled[OUTBOX]:
        return state
    return state._replace(results=state.results | {Result(worker.pass_, worker.done)})


def _with_queue(state: State, into: int, queue: QueueLog) -> State:
    out, errors = (queue if place == into else before for place, before in enumerate(state.queues))
    return state._replace(queues=(out, errors))


def _spent(state: State) -> State:
    return state._replace(budget=state.budget._replace(faults=state.budget.faults - 1))


def _add(state: State, worker: Worker) -> State:
    return state._replace(workers=tuple(sorted((*state.workers, worker))))
