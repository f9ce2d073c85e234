"""Steps that remember: before a call the answer is looked up, after it what the step wrote is kept.

One object a step and task does this for every way of calling (``RememberedCalls``). A step that is called for one
document at a time asks it before each call; one with batches or several calls under way has a ``SharedInputs`` before
its queue, so that only what is missing is in a list.

The step gets a copy of what it reads, and its document gets what is kept of the answer, whether that was remembered or
not: both make the same deliveries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol

from ferryman.document import Document
from ferryman.engine.results import StepTimeout
from ferryman.engine.transform.calls import WrongReturn, make_batch_call, make_document_call
from ferryman.engine.transform.walk import Raised
from ferryman.errors import (
    Dropped,
    EngineError,
    Interrupted,
    Misconfigured,
    PermanentError,
    StateFolderError,
    Unavailable,
    plain_text,
    unless_interrupt,
)
from ferryman.plan import StepNode
from ferryman.records.rows import now_us
from ferryman.remembered.answers import DROPPED, Input, RememberedAnswer, Unremembered, answer_of, make_input, refusal
from ferryman.remembered.log import LogName
from ferryman.remembered.store import FOLDER, AnswerStore
from ferryman.storage.files import StatePath

NOT_CALLED_HERE: Final = "needs a call of {step}, which a preview does not make"


def not_called_message(step: str) -> str:
    """Return why a preview does not follow a document further."""
    return NOT_CALLED_HERE.format(step=step)


class TaskAnswers:
    """Answers that the steps of one task remember. A store is opened when it is first needed, by who needs it.

    Args:
        root: folder of the state; the stores are beside it.
        share: this task's share of the steps' rates.
        may_call: False: nothing is called or written, as in a preview.
    """

    def __init__(self, root: StatePath, wave: int, *, share: float = 1.0, may_call: bool = True) -> None:
        self._share = share
        self._folder = root.parent / FOLDER
        self._plan, self._wave = root.name, wave
        self._may_call = may_call
        self._calls: dict[str, RememberedCalls] = {}

    def of(self, step: StepNode) -> RememberedCalls | None:
        """Return what a step remembers; None: it does not."""
        if step.remember is None:
            return None
        if step.name not in self._calls:
            log = LogName.new(self._plan, self._wave) if self._may_call else None
            self._calls[step.name] = RememberedCalls(step, self._folder, log)
        return self._calls[step.name]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_calls": {}}  # another process opens its own

    def document_call(self, step: StepNode) -> Callable[[Document], Any]:
        """Return a function that calls the step for one document at a time, or answers from memory."""
        call = make_document_call(step, self._share)
        if step.remember is None:
            return call

        def call_step(doc: Document) -> Any:
            remembered = self.of(step)
            assert remembered is not None
            return remembered.answer_one(doc, call)

        return call_step

    def needs(self) -> dict[str, tuple[int, int, int, set[bytes]]]:
        """Return step -> number of documents that came to it, of those that need a call, of those that need one and
        have no input, and the inputs of the others."""
        return {name: (each.documents, each.uncalled, each.alone, each.missing) for name, each in self._calls.items()}

    def note_used(self) -> None:
        """Note what was used so far, in case the process is killed."""
        for each in self._calls.values():
            each.note_used()

    def close(self) -> None:
        """Note what was used."""
        for each in self._calls.values():
            each.close()
        self._calls = {}


class RememberedCalls:
    """Answers of one step to the documents of one task.

    Attributes:
        documents: number of documents that came to the step.
        missing: inputs that need a call, where none is made.
        uncalled: number of documents that need a call, where none is made.
        alone: number of those that have no input, and so share the call of no other document.
    """

    def __init__(self, step: StepNode, folder: StatePath, log: LogName | None) -> None:
        assert step.remember is not None
        self._step = step.name
        self._remember = step.remember
        self._name = step.remember.name or step.name
        self._may_call = log is not None
        with self._store_errors():
            self._store = AnswerStore(folder / self._name, step.remember, log)
        self.documents = self.uncalled = self.alone = 0
        self.missing: set[bytes] = set()

    # -- one document at a time --------------------------------------------------------------------

    def answer_one(self, doc: Document, call: Callable[[Document], Any]) -> Any:
        """Return what the step returns for a document, called or from memory."""
        given = self.input_of(doc)
        if given is None:
            return call(doc)
        tries = 0
        while (answer := self.recall(given)) is None:
            if self.begin([given]):
                return self._call_one(given, call).apply(doc)
            time.sleep(self._store.wait_s(tries))  # another task calls for it
            tries += 1
        return answer.apply(doc)

    def _call_one(self, given: Input, call: Callable[[Document], Any]) -> RememberedAnswer | Unremembered:
        """Call the step for an input and keep the answer; raise what it raised."""
        try:
            returned = call(given)
        except BaseException as e:
            self.fail([given], unless_interrupt(e))
            raise
        [outcome] = self.keep([given], [returned])
        if isinstance(outcome, BaseException):
            raise outcome
        kept: RememberedAnswer | Unremembered = outcome
        return kept

    # -- any number of documents -------------------------------------------------------------------

    def input_of(self, doc: Document) -> Input | None:
        """Return a document's input; None: it has none, and the step is called with the document itself.

        Raises:
            Dropped: it needs a call, and none is made.
        """
        self.documents += 1
        given = make_input(self._name, self._remember, doc)
        if given is None and not self._may_call:
            self.uncalled += 1
            self.alone += 1
            raise Dropped(not_called_message(self._step))
        return given

    def recall(self, given: Input) -> RememberedAnswer | None:
        """Return the answer to an input from memory, if it is there.

        Raises:
            Dropped: it needs a call, and none is made.
        """
        with self._store_errors():
            answer = self._store.recall(given)
        if answer is None and not self._may_call:
            self.missing.add(given.key)
            self.uncalled += 1
            raise Dropped(not_called_message(self._step))
        return answer

    def note_shared(self, given: Input) -> None:
        """Count a document that shares the answer of another one's call."""
        self._store.note_shared(given)

    def begin(self, inputs: Sequence[Input]) -> set[bytes]:
        """Claim inputs; return the keys of those that are to be called for now, see ``AnswerStore.begin``."""
        with self._store_errors():
            return self._store.begin(inputs)

    def keep(self, inputs: Sequence[Document], answers: Sequence[Any]) -> list[Any]:
        """Keep what the step returned for each input; return an outcome for each: an answer, ``Unremembered`` or an
        exception. What was called for a document without an input is returned as it is."""
        outcomes: list[Any] = []
        kept: list[tuple[Input, RememberedAnswer]] = []
        failed: list[Input] = []
        for given, returned in zip(inputs, answers, strict=True):
            if not isinstance(given, Input):
                outcomes.append(returned)
                continue
            outcome, answer = self._judge(given, returned)
            outcomes.append(outcome)
            if answer is None:
                failed.append(given)
            else:
                kept.append((given, answer))
        with self._store_errors():
            self._store.end(kept, failed)
        return outcomes

    def _judge(self, given: Input, returned: Any) -> tuple[Any, RememberedAnswer | None]:
        """Return the outcome of a call for an input, and the answer to keep."""
        try:
            if isinstance(returned, Exception):
                raise returned
            outcome = answer_of(self._step, given, returned, self._remember.writes, now_us())
        except BaseException as e:
            error = unless_interrupt(e)
            return error, self._answer_of_error(error)
        return outcome, outcome if isinstance(outcome, RememberedAnswer) else None

    def _answer_of_error(self, error: BaseException) -> RememberedAnswer | None:
        if isinstance(error, Dropped):
            return RememberedAnswer(DROPPED, now_us(), reason=plain_text(error))
        if not isinstance(error, PermanentError) or isinstance(error, (Misconfigured, WrongReturn)):
            return None
        return refusal(error, now_us()) if self._remember.refusals_s > 0 and not error.universal else None

    def fail(self, inputs: Sequence[Document], error: BaseException) -> None:
        """Note that a call for these inputs has raised: a refusal of one input is kept."""
        given = [each for each in inputs if isinstance(each, Input)]
        if isinstance(error, StepTimeout):  # nobody knows what became of it
            self._store.release([each.key for each in given])
            return
        answer = self._answer_of_error(error) if len(inputs) == 1 else None
        with self._store_errors():
            if answer is not None and given:
                self._store.end([(given[0], answer)])
            else:
                self._store.end([], given)

    def batch_call(
        self, call: Callable[[list[Document]], Any]
    ) -> Callable[[list[Document]], list[Any] | Coroutine[Any, Any, list[Any]]]:
        """Return a function that calls for several inputs and keeps the answers, in the thread of the call."""

        def call_and_keep(inputs: list[Document]) -> Any:
            try:
                answers = call(inputs)
            except BaseException as e:
                self._fail_unless_interrupted(inputs, e)
                raise
            return await_and_keep(inputs, answers) if isinstance(answers, Coroutine) else self.keep(inputs, answers)

        async def await_and_keep(inputs: list[Document], answers: Coroutine[Any, Any, list[Any]]) -> list[Any]:
            try:
                awaited = await answers
            except BaseException as e:
                self._fail_unless_interrupted(inputs, e)
                raise
            return self.keep(inputs, awaited)

        return call_and_keep

    def _fail_unless_interrupted(self, inputs: list[Document], error: BaseException) -> None:
        if not isinstance(error, Interrupted):
            self.fail(inputs, error)

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Raise an error of the store as one of the whole step, of which no document is to blame.

        Raises:
            Unavailable: what the step remembers cannot be read or written.
        """
        try:
            yield
        except (OSError, EngineError, StateFolderError) as e:
            raise Unavailable(f"what it remembers cannot be read or written: {plain_text(e)}") from e

    def note_used(self) -> None:
        """Note what was used so far."""
        with self._store_errors():
            self._store.note_used()

    def close(self) -> None:
        """Note what was used, and release all claims."""
        with self._store_errors():
            self._store.close()


# Documents of a task that wait for answers, by input.


class Waiting(Protocol):
    """A document that waits for a step's answer, see ``concurrent.AwaitedAnswer``."""

    @property
    def doc(self) -> Document: ...

    @property
    def on_done(self) -> Callable[[Document, Any], None]: ...


class SharedInputs:
    """Documents of one task that wait for the answers of a step: each input is called for once."""

    def __init__(self, remembered: RememberedCalls) -> None:
        self._remembered = remembered
        self._waiting: dict[bytes, list[tuple[Waiting, Input]]] = {}

    def admit(self, waiting: Waiting) -> tuple[Document, Callable[[Document, Any], None]] | None:
        """Return what to call the step with for a document, and what to do with the answer; None: nothing is to be
        called, because the answer is there, or on its way."""
        try:
            given = self._remembered.input_of(waiting.doc)
            if given is None:
                return waiting.doc, waiting.on_done
            if given.key in self._waiting:
                self._waiting[given.key].append((waiting, given))
                return None
            answer = self._remembered.recall(given)
        except BaseException as e:
            waiting.on_done(waiting.doc, Raised(unless_interrupt(e)))
            return None
        if answer is not None:
            _finish(waiting, answer)
            return None
        self._waiting[given.key] = [(waiting, given)]
        return given, partial(self._answer, given.key)

    def begin(self, docs: Sequence[Document]) -> tuple[set[int], set[int]]:
        """Claim inputs before a call. Return the places of the documents to call for now, and of those for which
        another task is calling; the others have been answered."""
        inputs = {n: doc for n, doc in enumerate(docs) if isinstance(doc, Input)}
        now = {n for n in range(len(docs)) if n not in inputs}
        try:
            taken = self._remembered.begin([*inputs.values()]) if inputs else set()
        except BaseException as e:
            error = unless_interrupt(e)
            for doc in inputs.values():
                self._answer(doc.key, doc, Raised(error, error.__traceback__))
            return now, set()
        elsewhere = set()
        for n, given in inputs.items():
            if given.key in taken:
                now.add(n)
            elif (answer := self._remembered.recall(given)) is not None:
                self._answer(given.key, given, answer, called=False)
            else:
                elsewhere.add(n)
        return now, elsewhere

    def _answer(self, key: bytes, _called: Document, answer: Any, *, called: bool = True) -> None:
        """Give an answer, or ``Raised``, to all documents that wait for it."""
        for n, (waiting, given) in enumerate(self._waiting.pop(key, ())):
            if n and not isinstance(answer, Raised):
                self._remembered.note_shared(given)
            _finish(waiting, answer)


def _finish(waiting: Waiting, answer: Any) -> None:
    """Apply an answer to the document that waits for it."""
    if not isinstance(answer, Raised):
        try:
            answer = answer.apply(waiting.doc)
        except Exception as e:
            answer = Raised(e)
    waiting.on_done(waiting.doc, answer)


def make_remembering_batch_call(step: StepNode, remembered: RememberedCalls | None) -> Callable[[list[Document]], Any]:
    """Return the function that calls a step for several documents; it keeps the answers if the step remembers."""
    call = make_batch_call(step)
    return call if remembered is None else remembered.batch_call(call)
