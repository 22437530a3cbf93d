"""A model's state as bytes, without torch: tensors, what goes on between slices, digests.

A blob of tensors has the layout of safetensors: an 8-byte little-endian length, a JSON
object, and the tensors' bytes end to end. Blobs come from processes that run a recipe, so
reading is strict: known element types, sizes that fit shapes, no gap, no overlap, no name
twice, nothing behind the end.
Source: https://github.com/huggingface/safetensors (section Format).

Between two slices a training state is such a blob of model and optimizer, the optimizer's
plain values as JSON, and the number of steps. Whatever else a recipe keeps is gone when a
slice ends. There are two digests: the public one of a model's weights, and the private one
of rule H1. For it weights, optimizer and buffers are digested when a training slice ends
and again before their next use, under a key that is fresh each time and never leaves; only
the verdict is told. It is a statement of the attested accelerator, not a proof to others.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from sealift.codec import MAX_INTEGER
from sealift.crypto.hash import KeyedHasher, sha256_of
from sealift.crypto.keys import SecretKey
from sealift.errors import JobError, MalformedError
from sealift.ids import Digest
from sealift.train.loop.held import Chain, Content, Held, part_of, pieces_of, read_of

MAX_HEADER_BYTES: Final = 16 << 20
MAX_DIMENSIONS: Final = 64
_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"

# Bytes of one element, and torch's name for it.
ELEMENTS: Final[Mapping[str, tuple[int, str]]] = {
    "BOOL": (1, "bool"),
    "U8": (1, "uint8"),
    "I8": (1, "int8"),
    "F8_E4M3": (1, "float8_e4m3fn"),
    "F8_E5M2": (1, "float8_e5m2"),
    "I16": (2, "int16"),
    "U16": (2, "uint16"),
    "F16": (2, "float16"),
    "BF16": (2, "bfloat16"),
    "I32": (4, "int32"),
    "U32": (4, "uint32"),
    "F32": (4, "float32"),
    "I64": (8, "int64"),
    "U64": (8, "uint64"),
    "F64": (8, "float64"),
    "C64": (8, "complex64"),
}


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """A tensor without torch.

    Attributes:
        dtype: Name in ``ELEMENTS``.
        shape: Its sizes; none for a scalar.
        content: Its elements, little-endian, row by row.
    """

    dtype: str
    shape: tuple[int, ...]
    content: Content

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def form(self) -> str:
        """Element type and shape, as digests name them: ``torch.float32|3x4``."""
        sizes = "x".join(str(size) for size in self.shape)
        return f"torch.{ELEMENTS[self.dtype][1]}|{sizes}"


def pack_tensors(tensors: Mapping[str, TensorBytes]) -> bytes:
    """One blob; long elements first, so that each tensor lies on its own alignment."""
    return b"".join(chain_tensors(tensors).pieces())


def chain_tensors(
    tensors: Mapping[str, TensorBytes], metadata: Mapping[str, str] | None = None
) -> Chain:
    """The same blob, by reference; with texts in its header, if there are any."""
    head, order = head_of(tensors, metadata)
    return Chain(head, *(tensors[name].content for name in order))


def head_of(
    tensors: Mapping[str, TensorBytes], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, list[str]]:
    """What a blob begins with, and the order of the tensors behind; no content is read."""
    order = sorted(tensors, key=lambda name: (-ELEMENTS[tensors[name].dtype][0], name))
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        tensor, start = tensors[name], end
        end += tensor.elements * ELEMENTS[tensor.dtype][0]
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % _LENGTH_BYTES)
    return len(head).to_bytes(_LENGTH_BYTES, "little") + head, order


def parse_tensors(blob: Content) -> dict[str, TensorBytes]:
    """The tensors of a blob, by reference, in the order of their bytes.

    Raises:
        MalformedError: code ``bad-tensors``, at the first thing that does not fit.
    """
    whole = memoryview(blob) if isinstance(blob, bytes | bytearray) else blob
    header, start = _read_header(whole)
    header.pop(_METADATA, None)  # see ``read_metadata``
    entries = sorted(
        ((name, *_read_entry(name, each)) for name, each in header.items()),
        key=lambda entry: (entry[3], entry[4]),
    )
    found: dict[str, TensorBytes] = {}
    at = 0
    for name, dtype, shape, first, end in entries:
        if first != at or end - first != math.prod(shape) * ELEMENTS[dtype][0]:
            _refuse("a tensor's offsets do not match its shape")
        if start + end > len(whole):
            _refuse("a tensor reaches past the end of the data")
        content = part_of(whole, start + first, end - first)
        found[name] = TensorBytes(dtype, shape, content)
        at = end
    if start + at != len(whole):
        _refuse("the data is longer or shorter than the tensors")
    return found


def read_metadata(blob: bytes) -> dict[str, str]:
    """The texts in a blob's header, by name; empty without any.

    Raises:
        MalformedError: code ``bad-tensors``.
    """
    header, _start = _read_header(memoryview(blob))
    found = header.get(_METADATA, {})
    if not isinstance(found, dict) or any(
        not isinstance(each, str) for each in found.values()
    ):
        _refuse("the metadata is not text by name")
    return found


def _read_header(whole: Content) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(read_of(whole, 0, _LENGTH_BYTES), "little")
    start = _LENGTH_BYTES + length
    if len(whole) < _LENGTH_BYTES or length > MAX_HEADER_BYTES or start > len(whole):
        _refuse("the file is shorter than its header")
    try:
        text = read_of(whole, _LENGTH_BYTES, length).decode("utf-8")
        header = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        _refuse("the header is not JSON")
    if not isinstance(header, dict):
        _refuse("the header is not an object")
    return header, start


def _read_entry(name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        _refuse("a tensor has other fields than dtype, shape and data_offsets")
    dtype, shape, place = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ELEMENTS:
        _refuse("a tensor has an unknown element type")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        _refuse("a tensor has an invalid shape")
    if not _are_sizes(place) or len(place) != 2:
        _refuse("a tensor has invalid offsets")
    return dtype, tuple(shape), place[0], place[1]


def _are_sizes(plain: Any) -> bool:
    return isinstance(plain, list) and all(
        type(size) is int and 0 <= size <= MAX_INTEGER for size in plain
    )


def _without_repeats(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(name)
        found[name] = value
    return found


def _refuse(why: str) -> NoReturn:
    raise MalformedError(
        "the bytes are not a file of tensors", why=why, code="bad-tensors"
    )


MODEL: Final = "model/"
OPTIMIZER: Final = "optimizer/"
MAX_TREE_BYTES: Final = 16 << 20
_HEAD: Final = struct.Struct(">QQ")  # steps made, bytes of the tree
_COUNT: Final = struct.Struct(">Q")
_JOINT, _ALONE, _ROWS, _STATISTICS = "joint", "alone.", "rows", "statistics"
_BEST: Final = "best"


@dataclass(frozen=True, slots=True)
class TrainingState:
    """One model and its optimizer.

    Attributes:
        step: Optimizer steps made so far.
        tensors: Blob; names begin with ``MODEL`` or ``OPTIMIZER``. In an accelerator it
            lies in a memory file.
        tree: The optimizer's state with references into the blob; opaque here.
    """

    step: int
    tensors: Content
    tree: bytes

    def model(self) -> dict[str, TensorBytes]:
        """The model's tensors by their own names.

        Raises:
            MalformedError: if the blob is none.
        """
        found = parse_tensors(self.tensors)
        return {
            name.removeprefix(MODEL): tensor
            for name, tensor in found.items()
            if name.startswith(MODEL)
        }


FEW_NUMBERS: Final = 4096


def is_moved(name: str, tensor: TensorBytes) -> bool:
    """Whether a tensor is the optimizer's, and large: a round's mean is made without what it was."""
    return name.startswith(OPTIMIZER) and tensor.elements > FEW_NUMBERS


def give_away(state: TrainingState) -> None:
    """Overwrite and give back what is moved to a worker that has a copy of it.

    What is left, names and shapes among it, is what a mean is made with.
    """
    for name, tensor in parse_tensors(state.tensors).items():
        if is_moved(name, tensor) and isinstance(tensor.content, Held):
            tensor.content.clear()


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Everything that training goes on from.

    Attributes:
        joint: The model of all owners; None while there are but sums to build it on.
        alone: One of each owner alone; empty if the rule has no baselines.
        rows_trained: Rows trained on so far, with repetition.
        statistics: Blob of the sums of ``prepare``; empty without.
        best: The state that would be handed out, and how good it is; empty without.
    """

    joint: TrainingState | None
    alone: Mapping[str, TrainingState] = field(default_factory=dict)
    rows_trained: int = 0
    statistics: bytes = b""
    best: Content = b""

    def to_parts(self) -> dict[str, Content]:
        """Bytes by name, for a checkpoint; states by reference."""
        alone = {_ALONE + owner: join_state(each) for owner, each in self.alone.items()}
        return {
            _JOINT: join_state(self.joint) if self.joint is not None else b"",
            _ROWS: _COUNT.pack(self.rows_trained),
            _STATISTICS: self.statistics,
            _BEST: self.best,
            **alone,
        }

    @classmethod
    def from_parts(cls, parts: Mapping[str, Content]) -> TrainerState:
        """What ``to_parts`` made.

        Raises:
            MalformedError: code ``bad-tensors``, if it is something else.
        """
        try:
            return cls(
                joint=split_state(parts[_JOINT]) if parts[_JOINT] else None,
                alone={
                    name.removeprefix(_ALONE): split_state(each)
                    for name, each in parts.items()
                    if name.startswith(_ALONE)
                },
                rows_trained=_COUNT.unpack(_whole(parts[_ROWS]))[0],
                statistics=_whole(parts[_STATISTICS]),
                best=parts[_BEST],
            )
        except (KeyError, struct.error):
            raise _no_state() from None


def check_state(state: TrainingState) -> None:
    """Demand that a state which a recipe's process handed over is one.

    Raises:
        MalformedError: if its blob is none, or its tree is too long.
    """
    names = parse_tensors(state.tensors)
    known = all(name.startswith((MODEL, OPTIMIZER)) for name in names)
    if not known or len(state.tree) > MAX_TREE_BYTES:
        raise _no_state()
    head, _order = head_of(names)
    if (
        read_of(state.tensors, 0, len(head)) != head
    ):  # what goes on is compared as bytes
        _refuse("the tensors are in another order")


def join_state(state: TrainingState) -> Content:
    """A state's bytes, by reference."""
    head = _HEAD.pack(state.step, len(state.tree)) + state.tree
    joined = Chain(head, state.tensors)
    return joined.read(0, len(joined)) if type(state.tensors) is bytes else joined


def split_state(raw: Content) -> TrainingState:
    """What ``join_state`` made; raises ``bad-tensors`` for anything else."""
    if len(raw) < _HEAD.size:
        raise _no_state()
    step, length = _HEAD.unpack(read_of(raw, 0, _HEAD.size))
    middle = _HEAD.size + length
    if length > MAX_TREE_BYTES or middle > len(raw):
        raise _no_state()
    tensors = part_of(raw, middle, len(raw) - middle)
    state = TrainingState(step, tensors, read_of(raw, _HEAD.size, length))
    check_state(state)
    return state


def _whole(content: Content) -> bytes:
    return read_of(content, 0, len(content))


def _no_state() -> MalformedError:
    return MalformedError("the bytes are not a training state", code="bad-tensors")


def state_digest(state: Mapping[str, TensorBytes]) -> Digest:
    """Digest of named tensors, independent of how they are stored in a file."""
    parts = []
    for name in sorted(state):
        tensor = state[name]
        own = sha256_of(pieces_of(tensor.content))
        parts.append(f"{name}|{tensor.form}".encode() + own)
    return Digest.of(b"".join(parts))


class Settled:
    """What a training state was at one moment.

    Args:
        state: Model and optimizer.
        moved: Whether tensors that are moved to a worker are left out.
    """

    def __init__(self, state: TrainingState, *, moved: bool = False) -> None:
        self._key, self._moved = SecretKey.generate(), moved
        self._digest = self._measure(state)

    def verify(self, state: TrainingState) -> None:
        """Demand the same state, bit for bit.

        Raises:
            JobError: code ``state-changed``.
        """
        if self._measure(state) != self._digest:
            raise JobError(
                "the model or the optimizer changed between two slices",
                why="no code of Sealift changes them there",
                code="state-changed",
            )

    def _measure(self, state: TrainingState) -> bytes:
        hasher = KeyedHasher(self._key)
        sizes = (state.step, len(state.tensors), len(state.tree))
        hasher.update("|".join(str(size) for size in sizes).encode())
        hasher.update(b"|")
        for content in self._contents(state):
            for piece in pieces_of(content):
                hasher.update(piece)
        hasher.update(state.tree)
        return hasher.digest()

    def _contents(self, state: TrainingState) -> Iterator[Content]:
        if not self._moved:
            yield state.tensors
            return
        tensors = parse_tensors(state.tensors)
        yield head_of(tensors)[0]
        for name, tensor in tensors.items():
            if not is_moved(name, tensor):
                yield tensor.content
