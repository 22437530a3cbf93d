"""The file of a checkpoint: a sealed stream of a head and named states.

The key is fresh for each file and stays with the owners' brokers, in shares
(``release/checkpoint.py``). Everything is parsed strictly, also behind the seal: the
file may come from another version or another job. States are opaque bytes here.
Source: spec/checkpoint.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from sealift.channel.record.sealedfile import SealedFileReader, write_sealed_file
from sealift.codec import decode, encode, from_plain, to_plain
from sealift.crypto.keys import SecretKey
from sealift.errors import (
    AuthenticationError,
    IntegrityError,
    MalformedError,
    PolicyError,
    StaleError,
    UnavailableError,
)
from sealift.ids import Digest
from sealift.release.agreement.code import digest_of
from sealift.train.loop.held import PIECE_BYTES, Chain, Content, Held

MAGIC: Final = b"sealift-ckpt"
VERSION: Final = 2
MAX_HEAD_BYTES: Final = 64 << 20
MAX_STATES: Final = 1024
MAX_NAME_CHARACTERS: Final = 200
_START: Final = struct.Struct(">12sIQ")  # magic, version, bytes of the head
_CHUNK_BYTES: Final = 1 << 20
P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBinding:
    """Which work a checkpoint belongs to.

    Attributes:
        job: Name of the job.
        agreement: Its agreement.
        settings: Digest of everything in the job that shapes the bits of its result.
    """

    job: str
    agreement: Digest
    settings: Digest


@dataclass(frozen=True, slots=True)
class Checkpoint(Generic[P]):
    """What training goes on from.

    Attributes:
        number: From 1, never used again for another one that counts.
        position: First group of the plan that is still to be worked on.
        progress: What was counted and measured so far; a record of the codec.
        states: Opaque bytes by name, in a memory file where there are many.
    """

    number: int
    position: int
    progress: P
    states: Mapping[str, Content]


@dataclass(frozen=True, slots=True)
class _State:
    name: str
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    binding: JobBinding
    number: int
    position: int
    progress: dict[str, object]
    states: tuple[_State, ...]


def checkpoint_path(folder: Path, number: int) -> Path:
    """``checkpoint-000012.sealed``."""
    return folder / f"checkpoint-{number:06d}.sealed"


def numbers_in(folder: Path) -> list[int]:
    """Numbers of the checkpoint files in a folder, smallest first."""
    stems = (path.stem for path in folder.glob("checkpoint-*.sealed"))
    parts = (stem.partition("-")[2] for stem in stems)
    return sorted(int(part) for part in parts if part.isascii() and part.isdecimal())


def write_checkpoint(
    folder: Path, checkpoint: Checkpoint[P], binding: JobBinding, key: SecretKey
) -> Digest:
    """Seal a checkpoint, whole and synced; the digest of its file.

    Raises:
        UnavailableError: ``disk-full`` or ``cannot-write``; earlier files are intact.
    """
    names = sorted(checkpoint.states)
    sizes = (_State(name, len(checkpoint.states[name])) for name in names)
    head = encode(
        _Head(
            binding=binding,
            number=checkpoint.number,
            position=checkpoint.position,
            progress=to_plain(checkpoint.progress),
            states=tuple(sizes),
        )
    )
    start = _START.pack(MAGIC, VERSION, len(head))
    whole = Chain(start, head, *(checkpoint.states[name] for name in names))
    path = checkpoint_path(folder, checkpoint.number)
    write_sealed_file(
        path, whole.pieces(), key=key, total_bytes=len(whole), replace=True
    )
    return digest_of(path)


def find_checkpoint(folder: Path, number: int, sealed: Digest) -> Path:
    """The file of the checkpoint that counts, before anybody is asked for its key.

    Raises:
        UnavailableError: ``checkpoint-missing``.
        StaleError: ``checkpoint-stale``: there are only earlier ones, or another file
            in its place.
    """
    path = checkpoint_path(folder, number)
    if not path.exists():
        raise _absent(folder, number)
    if digest_of(path) != sealed:
        raise StaleError(
            f"{path.name} is not the latest checkpoint of this job",
            why=(
                "its digest differs from the one in the owners' logs: an earlier file "
                "replaced it, or it is damaged"
            ),
            code="checkpoint-stale",
        )
    return path


def read_checkpoint(
    path: Path, kind: type[P], binding: JobBinding, number: int, key: SecretKey
) -> Checkpoint[P]:
    """Open and parse a checkpoint.

    Args:
        kind: Class of its progress.
        binding: What it must belong to.
        number: What it must be.

    Raises:
        IntegrityError: ``checkpoint-damaged``, if the key does not open it.
        MalformedError: ``checkpoint-version``, or it does not parse.
        PolicyError: ``checkpoint-other-job``.
        UnavailableError: if it cannot be read.
    """
    with _open(path, key) as reader:
        head, start = _read_head(reader)
        _require_binding(head.binding, binding)
        if head.number != number:
            raise _malformed("its number differs from the number in its file name")
        progress = from_plain(kind, head.progress, "progress")
        states = dict(_read_states(reader, head, start))
    return Checkpoint(head.number, head.position, progress, states)


@contextmanager
def _open(path: Path, key: SecretKey) -> Iterator[SealedFileReader]:
    """The file, every record of which opens; it is read in pieces meanwhile."""
    try:
        reader = SealedFileReader(path, key)
    except (AuthenticationError, MalformedError):
        raise _damaged(path) from None
    with reader:
        try:
            reader.verify()
        except (AuthenticationError, MalformedError):
            raise _damaged(path) from None
        try:
            yield reader
        except AuthenticationError:  # it was changed since
            raise _damaged(path) from None


def _damaged(path: Path) -> IntegrityError:
    return IntegrityError(
        f"{path.name} could not be opened with its key",
        why=(
            "the file was changed, or the brokers' key shares belong to another "
            "checkpoint"
        ),
        code="checkpoint-damaged",
    )


def _read_head(reader: SealedFileReader) -> tuple[_Head, int]:
    """The head, and where the states begin."""
    total = reader.total_bytes
    if total < _START.size:
        raise _malformed("the file is too short")
    magic, version, head_bytes = _START.unpack(reader.read(0, _START.size))
    if magic != MAGIC:
        raise _malformed("the file does not begin as a checkpoint begins")
    if version != VERSION:
        raise MalformedError(
            f"the checkpoint has format version {version}",
            why=f"this version of Sealift reads version {VERSION}",
            code="checkpoint-version",
        )
    if head_bytes > min(total - _START.size, MAX_HEAD_BYTES):
        raise _malformed("its header is too long")
    raw = reader.read(_START.size, head_bytes)
    return decode(_Head, raw, max_bytes=MAX_HEAD_BYTES), _START.size + head_bytes


def _read_states(
    reader: SealedFileReader, head: _Head, start: int
) -> Iterator[tuple[str, Content]]:
    names = [state.name for state in head.states]
    if names != sorted(set(names)) or len(names) > MAX_STATES:
        raise _malformed("its states are not in ascending order")
    if any(len(name) > MAX_NAME_CHARACTERS for name in names):
        raise _malformed("a state's name is too long")
    if any(state.length < 0 for state in head.states):
        raise _malformed("a state's length is negative")
    if sum(state.length for state in head.states) != reader.total_bytes - start:
        raise _malformed("the states' total length differs from the file's length")
    for state in head.states:
        if state.length <= PIECE_BYTES:
            yield state.name, reader.read(start, state.length)
        else:
            room = Held.room(state.length)
            for at in range(0, state.length, PIECE_BYTES):
                length = min(PIECE_BYTES, state.length - at)
                room.write(at, reader.read(start + at, length))
            yield state.name, room
        start += state.length


def _require_binding(found: JobBinding, expected: JobBinding) -> None:
    if found == expected:
        return
    what = "settings" if found.job == expected.job else "name"
    if found.agreement != expected.agreement:
        what = "agreement"
    raise PolicyError(
        "the checkpoint belongs to another job",
        why=f"its {what} is another one",
        code="checkpoint-other-job",
    )


def _absent(folder: Path, number: int) -> StaleError | UnavailableError:
    earlier = [each for each in numbers_in(folder) if each < number]
    if earlier:
        return StaleError(
            f"the latest checkpoint has the number {number}, and {folder} has only "
            f"checkpoint {earlier[-1]}",
            why="the folder was restored to an earlier state",
            code="checkpoint-stale",
        )
    return UnavailableError(
        f"{folder} has no checkpoint {number}",
        why="the owners' brokers name it as the latest",
        code="checkpoint-missing",
    )


def _malformed(why: str) -> MalformedError:
    return MalformedError(
        "the file is not a checkpoint", why=why, code="bad-checkpoint"
    )
