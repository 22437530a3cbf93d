"""The served model seen from its parent: a sandboxed worker that stays, and is not believed.

One thing at a time is asked of it. Questions go into memory that it can only read,
answers are copied out before they are looked at. What leaves of them are the form's
fields, rounded, and nothing else (rule H8): shapes follow from the number of rows asked,
numbers must be finite and within their bounds. A worker that fails in its recipe goes
on, if its device still computes; one that dies, garbles, takes too long or lost its GPU is
replaced, with the model opened anew.
``close`` ends it, and overwrites what it was given.

A model's own file can be asked at home, about a table that was not sealed: no server, no
key. The recipe runs in its sandbox there, too, and must be the one that trained the model.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
from numpy.typing import NDArray

from sealift.channel.record.opener import scrub
from sealift.data.schedule.memory import SharedBuffer, free_memory_bytes, overwritten
from sealift.data.schema.rows import demand_rows, numpy_dtype
from sealift.data.schema.schema import Field, Schema
from sealift.errors import (
    JobError,
    MalformedError,
    PeerError,
    SealiftError,
    require_kind,
    require_value,
)
from sealift.events import Sink, discard, emit
from sealift.ids import Buffer
from sealift.release.agreement import MAX_DIGITS
from sealift.release.agreement.code import load_assets, load_bundle
from sealift.serve.pending import pack_question, unpack_answer
from sealift.train.job.settings import ServingTable
from sealift.train.loop.faults import Fault, believable, explain, unfit
from sealift.train.output.modelfacts import ModelFacts
from sealift.train.output.modelform import Fields, ModelForm
from sealift.train.sandbox.confine import Confinement
from sealift.train.worker.devices import CPU
from sealift.train.worker.executor import RecipeExecutor
from sealift.train.worker.messages import (
    ServeAnswer,
    ServeOrder,
    ServeStep,
)
from sealift.train.worker.process import (
    TaskEquipment,
    TextTap,
    WorkerProcess,
    garbled,
    killed,
)
from sealift.train.worker.requests import Area


def let_out_rows(rows: bytearray, fields: Fields) -> bytearray:
    """Round in place, and demand that every row fits the form.

    Args:
        rows: Whole rows of ``fields.schema``.
        fields: Of the model's form.

    Raises:
        JobError: code ``answer-refused``; names the field and the rule, no value.
    """
    schema = fields.schema
    table = np.frombuffer(rows, dtype=np.uint8).reshape(-1, schema.row_bytes)
    for field, offset in zip(schema.fields, schema.offsets, strict=True):
        if field.name in fields.digits:
            column = table[:, offset : offset + field.size_bytes]
            numbers = column.view(numpy_dtype(field))
            np.round(numbers, fields.digits[field.name], out=numbers)
    try:
        demand_rows(rows, schema)
    except MalformedError as error:
        raise JobError(
            "the model's answer does not match the model's form",
            why=f"{error.field}: {error.why}",
            code="answer-refused",
        ) from None
    return rows


LOAD_S: Final = 120.0
MAX_RESTARTS: Final = 20
RESTARTS_S: Final = 600.0  # within which there are so many: who kills it can do no more
FATAL: Final = frozenset(
    {"recipe-killed", "recipe-timeout", "recipe-garbled", "device-lost"}
)


_LIVE: weakref.WeakSet[ModelWorker] = weakref.WeakSet()


class ModelWorker:
    """A model in its sandbox.

    Args:
        executor: Starts the worker; runs no task meanwhile.
        form: Of the model.
        open_model: Opens the sealed model, again after a restart.
        settings: Of the process: rows, time and threads of a step.
        lost: Told what went wrong when no worker can be had any more.
        clock: Monotonic seconds.
        sink: Gets ``serve.restarted`` and ``serve.unscrubbed``.
    """

    def __init__(
        self,
        executor: RecipeExecutor,
        form: ModelForm,
        open_model: Callable[[], SharedBuffer],
        *,
        settings: ServingTable,
        lost: Callable[[SealiftError], None] = lambda error: None,
        clock: Callable[[], float] = time.monotonic,
        sink: Sink = discard,
    ) -> None:
        self._executor = executor
        self._form = form
        self._open_model = open_model
        self._sink = sink
        self._lost = lost
        self._clock = clock
        self._restarts: deque[float] = deque(maxlen=MAX_RESTARTS)
        self._worker: _Worker | None = None
        found = [each for each in (form.outputs, form.tokens) if each is not None]
        rows = max(settings.max_batch_rows, form.max_rows)
        self._room = SharedBuffer(rows * form.inputs.row_bytes)
        area_bytes = rows * max(each.schema.row_bytes for each in found)
        self._terms = _Terms(form, self._room, area_bytes, settings)
        _LIVE.add(self)

    def start(self) -> None:
        """Load the model.

        Raises:
            JobError: if the recipe does not load, or builds another model.
            IntegrityError, UnavailableError: if the model cannot be opened.
        """
        self._worker = _Worker(
            self._executor, self._open_model, self._terms, self._sink
        )

    def predict(self, parts: Sequence[Buffer], rows: int) -> bytearray:
        """Answer rows of one or several questions, in order.

        Raises:
            JobError: what is wrong with the recipe; ``answer-refused``.
        """
        self._fill(parts)
        self._do(ServeStep(work="predict", rows=rows), rows)
        return self._take(require_value(self._form.outputs), rows)

    def describe(self, parts: Sequence[Buffer], rows: int) -> dict[str, str]:
        """What answers to rows hold, by name: ``float32 2x3``; raises like ``predict``.

        Nothing of an answer leaves but this, and nobody has checked it.
        """
        self._fill(parts)
        step = ServeStep(work="describe", rows=rows)
        return require_value(self._worker).ask(step, (0,)).fields

    def begin(self, stream: int, payload: Buffer, rows: int) -> None:
        """Begin to generate from rows; raises like ``predict``."""
        self._fill([payload])
        self._do(ServeStep(work="begin", stream=stream, rows=rows), 0)

    def next(self, stream: int, rows: int) -> bytearray | None:
        """The next tokens of a generation, or None at its end; raises like ``predict``."""
        found = self._do(ServeStep(work="next", stream=stream), rows, 0)
        return self._take(require_value(self._form.tokens), rows) if found else None

    def drop(self, stream: int) -> None:
        """Forget a generation that nobody wants any more."""
        self._do(ServeStep(work="drop", stream=stream), 0)

    def close(self) -> None:
        """End the process and overwrite what it read and wrote."""
        try:
            self._end_worker()
        finally:
            _LIVE.discard(self)
            scrub(self._room.view)
            self._room.close()

    def overwrite(self) -> None:
        """Overwrite the questions and answers that lie here."""
        scrub(self._room.view)
        if self._worker is not None:
            self._worker.overwrite()

    def _fill(self, parts: Sequence[Buffer]) -> None:
        at = 0
        for part in parts:
            self._room.view[at : at + len(part)] = part
            at += len(part)

    def _take(self, fields: Fields, rows: int) -> bytearray:
        content = require_value(self._worker).copy(rows * fields.schema.row_bytes)
        return let_out_rows(content, fields)

    def _do(self, step: ServeStep, *expected: int) -> int:
        if self._worker is None:
            self._restart()
        worker = require_value(self._worker)
        try:
            return worker.do(step, expected)
        except SealiftError as error:
            if error.code in FATAL or not worker.computes():
                self._end_worker()
            raise

    def _restart(self) -> None:
        now_s, full = self._clock(), len(self._restarts) == MAX_RESTARTS
        if full and now_s - self._restarts[0] < RESTARTS_S:
            raise killed(f"it ended {MAX_RESTARTS} times in {RESTARTS_S:g} s")
        self._restarts.append(now_s)
        emit(self._sink, "serve.restarted", number=len(self._restarts))
        try:
            self.start()
        except SealiftError as error:  # it started once: this does not mend itself
            self._lost(error)
            raise

    def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


def overwrite_live_rooms() -> None:
    """Of every model of this process: the last act of a second signal."""
    for model in list(_LIVE):
        model.overwrite()


@dataclass(frozen=True, slots=True)
class _Terms:
    """What every worker gets, also after a restart."""

    form: ModelForm
    room: SharedBuffer
    area_bytes: int
    settings: ServingTable

    def order(self, equipment: TaskEquipment, model: SharedBuffer) -> ServeOrder:
        return ServeOrder(
            entry=equipment.entry,
            device=equipment.device,
            bundle=equipment.bundle.length,
            model=model.length,
            form=self.form.to_plain(),
            room=self.room.length,
            threads=self.settings.threads,
            parameters=dict(self.form.parameters),
        )


class _Worker:
    """One process, from its start to its end."""

    def __init__(
        self,
        executor: RecipeExecutor,
        open_model: Callable[[], SharedBuffer],
        terms: _Terms,
        sink: Sink,
    ) -> None:
        self._settings = terms.settings
        with ExitStack() as stack:
            control, self._equipment = stack.enter_context(executor.lend())
            self._area = stack.enter_context(closing(Area(terms.area_bytes)))
            text = stack.enter_context(closing(TextTap(self._equipment.text)))
            self._process = WorkerProcess(control, self._equipment, self._area)
            stack.callback(self._end, sink)
            model = stack.enter_context(overwritten(open_model()))
            files = [model.descriptor, terms.room.descriptor]
            try:
                self._process.start(free_memory_bytes(), text, files)
            except PeerError:
                raise killed("the server does not start it again") from None
            self._converse(terms.order(self._equipment, model), (0,), LOAD_S)
            scrub(model.view)  # loaded; the memory itself goes with the process
            self._stack = stack.pop_all()

    def do(self, step: ServeStep, expected: Sequence[int]) -> int:
        """Have one step done; the rows of its answer.

        Raises:
            JobError: see ``ModelWorker.predict``.
        """
        return self.ask(step, expected).rows

    def ask(self, step: ServeStep, expected: Sequence[int]) -> ServeAnswer:
        """The same; the whole answer."""
        return self._converse(step, expected, self._settings.work_s)

    def copy(self, length: int) -> bytearray:
        """The answer, in memory of our own."""
        return bytearray(self._area.copy(0, length))

    def overwrite(self) -> None:
        """Overwrite the answers that lie here."""
        self._area.overwrite()

    def computes(self) -> bool:
        """Whether its device still does: after some errors a GPU does nothing more."""
        if self._equipment.device != CPU:
            try:
                self.do(ServeStep(work="prove"), (0,))
            except SealiftError:
                return False
        return True

    def close(self) -> None:
        """End the process."""
        self._stack.close()

    def _end(self, sink: Sink) -> None:
        self._process.part(0.0)
        if left := self._process.left:
            emit(sink, "serve.unscrubbed", device=self._equipment.device, line=left)

    def _converse(
        self, order: object, expected: Sequence[int], within_s: float
    ) -> ServeAnswer:
        self._process.allow(within_s)
        try:
            self._process.tell(order)
            found = self._process.hear(ServeAnswer, Fault).message
        except MalformedError:
            raise garbled() from None
        except PeerError as error:
            raise self._process.died(error, "batch") from None
        if isinstance(found, Fault):
            raise self._explain(found)
        found = require_kind(found, ServeAnswer)
        if found.rows not in expected:
            raise garbled()
        return found

    def _explain(self, fault: Fault) -> SealiftError:
        files = self._equipment.files
        believed = believable(
            fault,
            files,
            fields=frozenset(),
            parameters=frozenset(),
            steps=range(0),
            gpu=self._equipment.device != CPU,
        )
        return explain(believed)


ASKED_ROWS: Final = 1024  # at one time
WORK_S: Final = 3600.0
_UNKNOWN: Final = Fields(Schema((Field("answer", "uint8"),)))


def predict_table(
    facts: ModelFacts,
    content: bytes,
    bundle: Path,
    columns: Mapping[str, NDArray[Any]],
    inputs: Schema,
    *,
    text: TextIO,
    tell: Callable[[str], None],
) -> dict[str, NDArray[Any]]:
    """Answers by name, a row for each row; floats rounded to six decimal places.

    Args:
        facts: Of the model's file.
        content: The file.
        bundle: Folder of the recipe that trained it.
        columns: Arrays of shape (rows, ...), by name.
        inputs: What a row of them is.
        text: Where the recipe's prints and traceback go.
        tell: Gets a line about the sandbox.

    Raises:
        IntegrityError: ``code-bundle-differs``.
        UnavailableError: ``no-sandbox``; ``no-device``, ``no-memory``.
        JobError: what is wrong with the recipe; ``answer-refused``.
        MalformedError: ``bad-request``, if arrays do not fit.
    """
    files = load_bundle(bundle, facts.code)
    settings = ServingTable(max_batch_rows=ASKED_ROWS, work_s=WORK_S)
    assets, entry = load_assets(bundle, facts.code.files), facts.code.entry
    with RecipeExecutor(files, entry, text=text, tell=tell, assets=assets) as executor:
        Confinement.parse(executor.sandbox).require(())  # no level lets it run bare

        def start(stack: ExitStack, outputs: Fields) -> ModelWorker:
            form = ModelForm(
                inputs=inputs,
                outputs=outputs,
                max_rows=ASKED_ROWS,
                parameters=facts.parameters or {},
            )
            model = ModelWorker(
                executor,
                form,
                lambda: SharedBuffer.of(content),
                settings=settings,
            )
            stack.enter_context(closing(model))
            model.start()
            return model

        form = ModelForm(inputs=inputs, outputs=_UNKNOWN)
        asked, width = pack_question(columns, form), inputs.row_bytes
        rows = memoryview(asked.payload)
        with ExitStack() as stack:
            fields = start(stack, _UNKNOWN).describe([rows[:width]], 1)
        outputs = _outputs_of(fields)
        answers = bytearray()
        with ExitStack() as stack:
            model = start(stack, outputs)
            for first in range(0, asked.rows, ASKED_ROWS):
                count = min(ASKED_ROWS, asked.rows - first)
                part = rows[first * width : (first + count) * width]
                answers += model.predict([part], count)
    return unpack_answer(answers, outputs.schema)


def _outputs_of(fields: Mapping[str, str]) -> Fields:
    """What a recipe says that it answers, as far as it is a form.

    Raises:
        JobError: ``bad-recipe``.
    """
    try:
        schema = Schema(
            tuple(
                Field(name, form.partition(" ")[0], _sizes(form.partition(" ")[2]))
                for name, form in fields.items()
            )
        )
    except (MalformedError, ValueError):
        raise unfit("answer") from None
    floats = [each.name for each in schema.fields if each.element.kind == "float"]
    return Fields(schema, dict.fromkeys(floats, MAX_DIGITS))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split("x") if each)
