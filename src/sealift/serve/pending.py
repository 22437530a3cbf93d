"""A client's questions under way: packed, numbered, sent, and each answer sorted to its own.

Arrays by name become the rows of a question, and the rows of an answer arrays again;
torch is looked at by its ways, never imported here. Of the threads that wait for answers
one reads for all. An answer to a question that was not asked, or whose bytes do not fit,
ends the session: the server is attested, its bugs are not.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sealift.data.schema.rows import numpy_dtype, pack, row_dtype
from sealift.data.schema.schema import Field, Schema
from sealift.errors import MalformedError, PeerError, SealiftError
from sealift.ids import Buffer
from sealift.serve.protocol import (
    Cancel,
    Header,
    InferenceAnswer,
    InferenceRequest,
    Packet,
    Refused,
    Work,
    bad_request,
    explain_refusal,
    receive_packet,
    send_packet,
)
from sealift.session.session import Session
from sealift.train.output.modelform import ModelForm

Arrays = Mapping[str, Any] | Any
_SAME_KIND: Final = {"f": "float", "i": "int", "u": "int", "b": "bool"}


@dataclass(frozen=True, slots=True)
class PackedQuestion:
    """Rows of a question.

    Attributes:
        rows: How many.
        payload: Their bytes.
        of_tensors: Whether they came as torch tensors.
    """

    rows: int
    payload: Buffer
    of_tensors: bool

    def part(self, start: int, most: int) -> PackedQuestion:
        """Up to ``most`` rows from ``start`` on."""
        row_bytes = len(self.payload) // self.rows
        end = min(self.rows, start + most)
        if (start, end) == (0, self.rows):
            return self
        view = memoryview(self.payload)[start * row_bytes : end * row_bytes]
        return PackedQuestion(end - start, view, self.of_tensors)


def pack_question(given: Arrays, form: ModelForm) -> PackedQuestion:
    """Rows from arrays.

    Args:
        given: By name; of a model with one input the array alone.
        form: Of the model.

    Raises:
        MalformedError: code ``bad-request``; names the field.
    """
    schema = form.inputs
    if not isinstance(given, Mapping):
        if len(schema.fields) != 1:
            raise bad_request(f"give a dict with the arrays {_names(schema)}")
        given = {schema.fields[0].name: given}
    if set(given) != {field.name for field in schema.fields}:
        found = ", ".join(sorted(map(str, given)))[:200] or "nothing"
        raise bad_request(
            f"the model needs the arrays {_names(schema)}; it received {found}"
        )
    of_tensors = any(hasattr(each, "detach") for each in given.values())
    columns = {field.name: _column(given[field.name], field) for field in schema.fields}
    lengths = {len(each) for each in columns.values()}
    if len(lengths) != 1 or not min(lengths):
        raise bad_request("all arrays must have the same number of rows, at least one")
    return PackedQuestion(lengths.pop(), _pack(columns, schema), of_tensors)


def unpack_answer(
    rows: Buffer, schema: Schema, *, as_tensors: bool = False
) -> dict[str, Any]:
    """Arrays of shape (rows, ...) by name, in memory of their own."""
    block = np.frombuffer(rows, dtype=row_dtype(schema))
    found = {f.name: np.ascontiguousarray(block[f.name]).copy() for f in schema.fields}
    if not as_tensors:
        return found
    from torch import from_numpy  # whoever gave tensors has it loaded

    return {name: from_numpy(each) for name, each in found.items()}


def _pack(columns: Mapping[str, NDArray[Any]], schema: Schema) -> Buffer:
    if len(schema.fields) == 1 and schema.fields[0].size_bytes == schema.row_bytes:
        column = next(iter(columns.values()))
        return np.ascontiguousarray(column).data.cast("B")  # the server checks
    try:
        return pack(
            columns, schema, source="the request", locate=lambda row, f, _: f"row {row}"
        )
    except MalformedError as error:
        raise bad_request(str(error)) from None


def _column(given: Any, field: Field) -> NDArray[Any]:
    array = given.detach().cpu().numpy() if hasattr(given, "detach") else given
    array = np.asarray(array)
    wanted = numpy_dtype(field)
    if array.shape[1:] != field.shape or not array.shape:
        shape = ", ".join(["rows", *map(str, field.shape)])
        raise bad_request(f"{field.name} has shape {array.shape}; it must be ({shape})")
    kind = _SAME_KIND.get(array.dtype.kind)
    if kind != field.element.kind:
        raise bad_request(
            f"{field.name} has type {array.dtype}; it must be {field.dtype}"
        )
    if array.dtype == wanted:
        return array
    with np.errstate(over="ignore"):
        cast = array.astype(wanted)
    if kind == "int" and not np.array_equal(cast, array):
        raise bad_request(
            f"{field.name} contains a value that {field.dtype} cannot represent"
        )
    return cast


def _names(schema: Schema) -> str:
    return ", ".join(field.name for field in schema.fields)


class Withdrawal:
    """How another thread ends a wait for answers: the server is told, and answers that."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._asked: tuple[PendingRequests, int] | None = None

    def demand_wanted(self) -> None:
        """Send nothing that nobody waits for.

        Raises:
            PeerError: code ``withdrawn``.
        """
        if self._over.is_set():
            raise PeerError("the request was cancelled", code="withdrawn")

    def asked(self, mail: PendingRequests, id_: int) -> None:
        """This question is under way now, instead of the one before."""
        with self._lock:
            self._asked = (mail, id_)
        if self._over.is_set():
            mail.cancel(id_)

    def withdraw(self) -> None:
        """No more of it, and of what would follow it."""
        self._over.set()
        with self._lock:
            asked = self._asked
        if asked is not None:
            asked[0].cancel(asked[1])

    def pause(self, seconds: float) -> bool:
        """Wait so long, unless it is withdrawn: then True."""
        return self._over.wait(seconds)


class PendingRequests:
    """Questions and answers of one session.

    Args:
        session: With the server.
        form: Of the model.
        max_request_bytes: Longest payload that the server takes.
    """

    def __init__(
        self, session: Session, form: ModelForm, max_request_bytes: int
    ) -> None:
        self._session = session
        self._form = form
        self._max_request_bytes = max_request_bytes
        self._inbox: dict[int, deque[Packet]] = {}
        self._state = threading.Condition()
        self._sending = threading.Lock()
        self._reading = False
        self._over: SealiftError | None = None
        self._last_id = 0

    def renew(self) -> None:
        """A whole new handshake; nobody may be waiting."""
        with self._sending, self._state:
            self._session.rekey()

    def ask(
        self, work: Work, question: PackedQuestion, steps: int = 0, *, pad: bool
    ) -> int:
        """Send one question; its number."""
        if question.rows * self._form.inputs.row_bytes > self._max_request_bytes:
            raise MalformedError(
                f"the request has {len(question.payload)} bytes",
                why=f"the server accepts at most {self._max_request_bytes} bytes",
                code="request-too-large",
            )
        with self._sending:
            self._require_open()
            self._last_id += 1
            id_ = self._last_id
            with self._state:
                self._inbox[id_] = deque()
            header = InferenceRequest(
                id=id_, work=work, rows=question.rows, steps=steps, pad=pad
            )
            try:
                send_packet(self._session, header, question.payload, pad=pad)
            except PeerError:
                self._raise_last_word()
                raise
        return id_

    def cancel(self, id_: int) -> None:
        """No more of this."""
        with self._sending:
            try:
                send_packet(self._session, Cancel(id_))
            except SealiftError:
                return  # it is over anyway

    def _raise_last_word(self) -> None:
        """What the server said before it hung up tells more than a broken pipe."""
        while True:
            try:
                packet = self._receive(1.0)
            except SealiftError:
                return
            self._sort(packet)

    def await_answer(self, id_: int, timeout_s: float) -> Packet:
        """The next packet for a question; one thread reads for all that wait."""
        until = time.monotonic() + timeout_s
        while True:
            with self._state:
                while not self._inbox[id_] and self._reading and self._over is None:
                    left_s = until - time.monotonic()
                    if left_s <= 0 or not self._state.wait(left_s):
                        raise _no_answer(timeout_s)
                if self._inbox[id_]:
                    return _answer(self._inbox[id_].popleft())
                self._require_open()
                self._reading = True
            try:
                self._sort(self._receive(max(0.0, until - time.monotonic())))
            except PeerError as error:
                if error.code == "peer-timeout":
                    raise _no_answer(timeout_s) from None
                self._end(_gone(error))
                raise _gone(error) from None
            except SealiftError as error:
                self._end(error)
                raise
            finally:
                with self._state:
                    self._reading = False
                    self._state.notify_all()

    def _receive(self, timeout_s: float) -> Packet:
        return receive_packet(
            self._session, timeout_s, max_payload=self._longest_answer
        )

    def _longest_answer(self, header: Header) -> int:
        found = [
            e.schema.row_bytes for e in (self._form.outputs, self._form.tokens) if e
        ]
        return self._form.max_rows * max(found)

    def _sort(self, packet: Packet) -> None:
        header = packet.header
        if isinstance(header, Refused) and header.id == 0:
            raise explain_refusal(header)
        if not isinstance(header, InferenceAnswer | Refused):
            raise unexpected("the server sent a packet that servers do not send")
        if not 1 <= header.id <= self._last_id:
            raise unexpected("the server answered a request that was not sent")
        with self._state:
            waiting = self._inbox.get(header.id)
            if waiting is not None:  # else: nobody waits for it any more
                self._check(packet)
                waiting.append(packet)
            self._state.notify_all()

    def _check(self, packet: Packet) -> None:
        """Bytes and rows must fit: the server is attested, its bugs are not."""
        header = packet.header
        if isinstance(header, InferenceAnswer) and header.rows:
            rows = len(packet.payload) / header.rows
            found = (self._form.outputs, self._form.tokens)
            if rows not in [each.schema.row_bytes for each in found if each]:
                raise unexpected(
                    "the number of bytes does not match the number of rows"
                )

    def forget(self, id_: int) -> None:
        """Nobody waits for it any more."""
        with self._state:
            self._inbox.pop(id_, None)

    def _require_open(self) -> None:
        if self._over is not None:
            raise _again(self._over)

    def _end(self, error: SealiftError) -> None:
        with self._state:
            self._over = self._over or error
            self._state.notify_all()
        self._session.close()


def _answer(packet: Packet) -> Packet:
    if isinstance(packet.header, Refused):
        raise explain_refusal(packet.header)
    return packet


def _again(error: SealiftError) -> SealiftError:
    """A fresh error for each call, so that tracebacks do not grow."""
    made = type(error).__new__(type(error))
    made.__dict__.update(error.__dict__)
    made.args = error.args
    return made


def _no_answer(timeout_s: float) -> PeerError:
    return PeerError(
        f"the server did not answer within {timeout_s:g} s",
        fix="Set a longer timeout, or ask again when the server has less load",
        code="peer-timeout",
    )


def _gone(error: PeerError) -> PeerError:
    if error.code in ("session-closed", "session-ended"):
        return PeerError("the server closed the session", code="session-closed")
    return PeerError(
        "the connection to the server was lost", why=error, code="server-gone"
    )


def unexpected(why: str) -> MalformedError:
    """The error for an answer that is none."""
    return MalformedError(
        "the server sent an unexpected answer", why=why, code="bad-answer"
    )
