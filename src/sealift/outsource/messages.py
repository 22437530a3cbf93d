"""What crosses between the trusted process and one server: words, shares, answers.

In the session the trusted process announces the traces of its job and the server accepts
or refuses. Then there is a pipe, and every message in it has a length that follows from
the trace: the word that begins a step, operands, answers, and at the step's end the
server's signature of what it answered. P and M get shares and no seed, Z gets seeds and
no share (rule M9).
Source: spec/shares.md section 7.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Final, NamedTuple

import numpy as np

from sealift.codec import encode_named, from_plain, parse_named
from sealift.crypto.hash import KeyedHasher
from sealift.crypto.keys import Label
from sealift.crypto.sign import Form
from sealift.errors import MalformedError
from sealift.ids import Digest
from sealift.numeric.kernels import PART
from sealift.numeric.keystream import SEED_BYTES
from sealift.numeric.residues import U32, ResidueBasis
from sealift.outsource.masked import Share
from sealift.outsource.terms import (
    Backward,
    Direction,
    Exchange,
    Forward,
    Layer,
    Tensor,
)
from sealift.outsource.trace import KnownTrace, Phase, Trace, Traces, calls_of
from sealift.session.session import Session

VERSION: Final = 4
PIPE_CONTEXT: Final = b"outsourced products"
TOGETHER_BYTES: Final = 1 << 18  # tensors of so many bytes in all cross as one message
WORD_BYTES: Final = np.dtype(np.uint32).itemsize
_BEGIN: Final = struct.Struct(">8sIQ")
_MAGIC: Final = b"SEALSHR\x01"
BEGIN_BYTES: Final = _BEGIN.size


@dataclass(frozen=True, slots=True)
class Product:
    """An exchange on the wire.

    Attributes:
        layer: Of a forward one; none of gradients.
        call: Whose gradients; 0 of a forward one.
        directions: ``Forward.later``, or ``Backward.wants``.
    """

    layer: Layer | None
    call: int
    directions: tuple[Direction, ...]

    @classmethod
    def of(cls, exchange: Exchange) -> Product:
        """To be sent."""
        if isinstance(exchange, Forward):
            return cls(exchange.layer, 0, exchange.later)
        return cls(None, exchange.call, exchange.wants)

    def exchange(self) -> Exchange:
        """As it was."""
        if self.layer is None:
            return Backward(self.call, self.directions)
        return Forward(self.layer, self.directions)


@dataclass(frozen=True, slots=True)
class Step:
    """The products of one kind of step, on the wire."""

    phase: Phase
    rows: int
    products: tuple[Product, ...]


@dataclass(frozen=True, slots=True)
class Announces:
    """The trusted process's: the job's steps, and whom it takes the server for."""

    version: int
    share: Share
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, share: Share, traces: Traces) -> Announces:
        """To be sent."""
        steps = (
            Step(each.phase, each.rows, tuple(map(Product.of, each.trace)))
            for each in traces.known
        )
        return cls(VERSION, share, tuple(steps))

    def traces(self) -> Traces:
        """Those of the job.

        Raises:
            MalformedError: code ``bad-trace``.
        """
        known = (
            KnownTrace(s.phase, s.rows, tuple(p.exchange() for p in s.products))
            for s in self.steps
        )
        return Traces(tuple(known))


@dataclass(frozen=True, slots=True)
class Accepts:
    """The server's: it has the memory.

    Attributes:
        method: How it multiplies: ``int8``, ``float64``.
        device: On what.
    """

    method: str
    device: str


@dataclass(frozen=True, slots=True)
class Refuses:
    """The server's: it does not, with the stable name of the reason."""

    code: str
    why: str


Word = Announces | Accepts | Refuses
_WORDS: Final[dict[str, type[Word]]] = {
    each.__name__: each for each in (Announces, Accepts, Refuses)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAnswers:
    """What a server signs at the end of a step.

    Attributes:
        traces: Of the job (``Traces.digest``).
        pipe: Names the pipe, and with it both ends' keys.
        begun: Steps that began in the pipe before this one, those done again counted.
        step: Of the job.
        answers: Digest of all that it answered in this step, in order. Its key is the
            session's, so that nobody else can try which answers it belongs to.
    """

    FORM: ClassVar[Form] = Form(Label.SHARE_ANSWERS, "answered")
    agreement: Digest
    share: Share
    traces: Digest
    pipe: Digest
    begun: int
    step: int
    answers: Digest


class Begin(NamedTuple):
    """A step begins: which of the traces, and the step's number."""

    trace: int
    step: int

    def encode(self) -> bytes:
        """As it is sent, ``BEGIN_BYTES`` long."""
        return _BEGIN.pack(_MAGIC, self.trace, self.step)

    @classmethod
    def parse(cls, raw: bytes | bytearray) -> Begin:
        """Read what ``encode`` wrote.

        Raises:
            MalformedError: code ``bad-message``.
        """
        magic, trace, step = _BEGIN.unpack(raw)
        if magic != _MAGIC:
            raise MalformedError(
                "the message does not begin a step", code="bad-message"
            )
        return cls(trace, step)


class Sent(NamedTuple):
    """A tensor of an exchange's operands."""

    tensor: Tensor
    shape: tuple[int, ...]
    basis: ResidueBasis

    @property
    def size(self) -> int:
        """Numbers of it."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Planned:
    """An exchange of a step, with all that follows from its trace.

    Attributes:
        call: Its number among the forward calls.
        layer: Whose product it is.
        asked: The products that it asks for.
        sent: Its operands, in order.
        answered: Numbers of each product, in order.
    """

    exchange: Exchange
    call: int
    layer: Layer
    asked: tuple[Direction, ...]
    sent: tuple[Sent, ...]
    answered: tuple[int, ...]

    @property
    def is_small(self) -> bool:
        """Whether its operands, and its answers, are one message each."""
        return are_together(self.sizes) and are_together(self.answered)

    @property
    def sizes(self) -> list[int]:
        """Numbers of each operand, in order."""
        return [each.size for each in self.sent]


def plan_step(trace: Trace) -> tuple[Planned, ...]:
    """Of each exchange of a step what crosses; made once for each form of steps."""
    calls, found = calls_of(trace), []
    made = 0
    tensors: tuple[Tensor, ...]
    asked: tuple[Direction, ...]
    wide: tuple[Direction, ...]
    for each in trace:
        if isinstance(each, Forward):
            layer, call, asked = each.layer, made, ("forward",)
            tensors, wide = ("w", "x"), ("forward", *each.later)
            made += 1
        else:
            layer, call, asked = calls[each.call].layer, each.call, each.wants
            tensors, wide = ("dy",), each.wants
        sent = (Sent(t, layer.shape(t), layer.basis_of(t, wide)) for t in tensors)
        sizes = (math.prod(layer.result(direction)) for direction in asked)
        found.append(Planned(each, call, layer, asked, tuple(sent), tuple(sizes)))
    return tuple(found)


def answered_together(plan: Sequence[Planned]) -> bool:
    """Whether Z's answers to a whole step are one message."""
    return are_together([size for each in plan for size in each.answered])


def are_together(sizes: Sequence[int]) -> bool:
    """Whether tensors of so many numbers are one message."""
    return WORD_BYTES * sum(sizes) <= TOGETHER_BYTES


def parts_of(size: int) -> list[slice]:
    """The messages in which a tensor crosses that is not sent with others."""
    return [slice(at, min(size, at + PART)) for at in range(0, size, PART)]


def new_room(numbers: int) -> U32:
    """Memory for so many numbers."""
    return np.empty(numbers, np.uint32)


class Message(NamedTuple):
    """Some of the tensors that cross.

    Attributes:
        bytes: Of it.
        covers: Which tensors it has, and which numbers of each.
    """

    bytes: memoryview
    covers: tuple[tuple[int, slice], ...]


def room_for(
    sizes: Sequence[int], take: Callable[[int], U32] = new_room
) -> tuple[list[U32], list[Message]]:
    """Arrays for the tensors of an exchange, and what the messages with them fill.

    What is small comes together; of what is not, each tensor comes alone, in parts.
    """
    if not are_together(sizes):
        arrays = [take(size) for size in sizes]
        return arrays, _cut(arrays)
    room = np.empty(sum(sizes), np.uint32)
    ends = list(accumulate(sizes))
    arrays = [room[end - n : end] for end, n in zip(ends, sizes, strict=True)]
    covers = ((n, slice(0, size)) for n, size in enumerate(sizes))
    return arrays, [Message(room.data.cast("B"), tuple(covers))]


def packed(arrays: Sequence[U32]) -> list[Message]:
    """The messages that ``room_for`` takes, from arrays that lie anywhere."""
    flat = [each.reshape(-1) for each in arrays]
    if len(flat) == 1 or not are_together([each.size for each in flat]):
        return _cut(flat)
    covers = ((n, slice(0, each.size)) for n, each in enumerate(flat))
    return [Message(np.concatenate(flat).data.cast("B"), tuple(covers))]


def _cut(arrays: Sequence[U32]) -> list[Message]:
    return [
        Message(each[part].data.cast("B"), ((n, part),))
        for n, each in enumerate(arrays)
        for part in parts_of(each.size)
    ]


def seed_bytes(plan: Sequence[Planned]) -> int:
    """Of the one message that Z gets of a step."""
    return SEED_BYTES * sum(len(each.sent) for each in plan)


def answer_hasher(session: Session, begun: int) -> KeyedHasher:
    """Takes in the answers of one step, under a key that both ends of its session have."""
    return KeyedHasher(session.export(Label.SHARE_ANSWERS, begun.to_bytes(8, "big")))


def encode_word(word: Word) -> bytes:
    """As it crosses in the session."""
    return encode_named(type(word).__name__, word)


def parse_word(raw: bytes, *expected: type[Word]) -> Word:
    """Read a word of one of these kinds.

    Raises:
        MalformedError: code ``bad-message``, or what is wrong in it.
    """
    name, plain = parse_named(raw)
    kind = _WORDS.get(name)
    if kind not in expected:
        raise MalformedError(
            f"the message {name[:40]!r} came at the wrong time", code="bad-message"
        )
    word: Word = from_plain(kind, plain)
    return word
