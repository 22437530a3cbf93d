"""Collectives of up to 16 ranks over one pipe to each: sums whose bits do not depend on time.

A rank sends each peer what that peer needs, sealed for it alone, so there is no group key
that a member could misuse (rule N4). Contributions are combined in the order of ranks,
whoever comes first: all ranks get the same bits, in every run. Before each collective all
announce what they are about to do, and nothing is taken from who is about to do something
else. The first error ends the group for ever, on every rank, a caller's mistake as well:
whoever went on would be taken for who is one collective behind.

Two phases (C): rank k gets everybody's part of chunk k, combines it, and sends the result
to all. One phase (D), for small tensors: everybody sends everything and combines it all.
Both add in the same order, and give the same bits.

Guarantees: when a call returns, what was sent may be written at once. When it raises,
what it was to fill holds nothing that may be used.
Not here: that a rank's contribution is what it should be; memory that others write while
it is sent or combined, which the caller copies first (rule N10).
Source: spec/collective.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from sealift.channel.device.device import DeviceTensor, SummingEngine
from sealift.collective.announcement import (
    Algorithm,
    CollectiveAnnouncement,
    Operation,
    Reduction,
)
from sealift.collective.ondevice import DeviceStore
from sealift.collective.peer import Peer, Wire
from sealift.collective.tensors import (
    DTYPES,
    Array,
    HostStore,
    Numbers,
    Store,
    bad_tensor,
    chunks_of,
    flat_view,
    segments_of,
)
from sealift.errors import PeerError, SealiftError, UsageError, require_value
from sealift.ids import Buffer

MAX_RANKS: Final = 16
DEFAULT_SEGMENT_BYTES: Final = 1 << 20  # stays in a core's cache while it is added
DEVICE_SEGMENT_BYTES: Final = (
    4 << 20
)  # a device's calls cost as much as a MiB's sealing
DEFAULT_ONE_PHASE_BYTES: Final = 64 << 10
# Segments sent before the first is received: both ends stay busy, and what is under way
# fits into a ring of eight slots.
_AHEAD: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the ranks of a group chose together (``planner``).

    Attributes:
        one_phase_bytes: The largest tensor that everybody sends to everybody.
        segment_bytes: How long a message is, the last of a chunk aside.
        digest: Of the choices and their reason; part of every announcement.
    """

    one_phase_bytes: int = DEFAULT_ONE_PHASE_BYTES
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    digest: bytes = bytes(32)


class SealedGroup:
    """One rank's end of a group. One thread uses it at a time.

    Args:
        rank: This one's number.
        wires: A pipe to each other rank, by its number; owned from now on.
        choices: What all ranks chose.

    Raises:
        UsageError: code ``bad-world``, if these are not the pipes of a group.
    """

    def __init__(
        self, rank: int, wires: Mapping[int, Wire], choices: Choices | None = None
    ) -> None:
        self.rank, self.world = rank, len(wires) + 1
        if {rank, *wires} != set(range(self.world)) or self.world > MAX_RANKS:
            raise UsageError(
                f"rank {rank} with connections to {sorted(wires)} is not a group of "
                f"at most {MAX_RANKS} ranks",
                code="bad-world",
            )
        self.choices = choices or Choices()
        self._number = 0
        self._turn = threading.Lock()
        self._failing = threading.Lock()
        self._failed: SealiftError | None = None
        self._peers = {
            number: Peer(number, wires[number], self._fail) for number in sorted(wires)
        }
        self._host = HostStore()
        self._device: DeviceStore | None = None

    def use_device(self, engine: SummingEngine) -> None:
        """Let ``all_reduce`` take tensors that lie on a device; once, before the first.

        Args:
            engine: The device; whoever made it closes it after the group.

        Raises:
            UnavailableError: if the device lacks the room, or the pipes' suite.
        """
        self._device = DeviceStore(engine)
        for peer in self._peers.values():
            peer.on_device.use_device(engine)

    @property
    def device(self) -> SummingEngine | None:
        """The device that this rank uses."""
        return self._device.engine if self._device is not None else None

    def all_reduce(
        self,
        tensor: Numbers,
        reduction: Reduction = Reduction.SUM,
        algorithm: Algorithm | None = None,
    ) -> None:
        """Combine everybody's ``tensor`` in the order of ranks, in place.

        Args:
            tensor: Any shape, contiguous, of one of ``DTYPES``; the same on every rank. On
                a device (``use_device``) it is summed there; other ranks may have it
                elsewhere. What was queued for its memory there comes first.
            reduction: How.
            algorithm: The same on every rank; by the tensor's size without. The bits of
                the result do not depend on it.

        Raises:
            JobError: code ``ranks-drifted``, if a rank is about to do something else.
            PeerError: if a rank is gone or too slow.
            RefusedError: if what came is not what that rank sent.
            UsageError: ``bad-tensor``, or ``group-in-use``.
        """
        flat = self._flat(tensor)
        small = flat.nbytes <= self.choices.one_phase_bytes
        how = algorithm or (Algorithm.ONE_PHASE if small else Algorithm.TWO_PHASE)
        with self._collective(
            Operation.ALL_REDUCE, flat, reduction=reduction, algorithm=how
        ):
            if how is Algorithm.ONE_PHASE:
                self._reduce_all(flat, reduction)
                return
            self._reduce_chunks(chunks_of(flat, self.world), reduction, tell=True)

    def reduce_scatter(
        self, tensor: Array, into: Array, reduction: Reduction = Reduction.SUM
    ) -> None:
        """Combine; each rank gets its part. ``tensor`` is used up.

        Args:
            tensor: ``world`` parts as long as ``into``, end to end.
            into: Gets the part of this rank.
            reduction: How.

        Raises:
            See ``all_reduce``.
        """
        flat, mine = self._flat(tensor), self._flat(into)
        if flat.dtype != mine.dtype or flat.size != mine.size * self.world:
            why = f"{mine.size} elements are not an equal part of {flat.size}"
            raise self._fail(bad_tensor(why))
        with self._collective(Operation.REDUCE_SCATTER, flat, reduction=reduction):
            chunks = chunks_of(flat, self.world)
            self._reduce_chunks(chunks, reduction, tell=False)
            self._flush()
            mine[...] = chunks[self.rank]

    def all_gather(self, part: Array, into: Array) -> None:
        """Everybody's ``part``, end to end in the order of ranks.

        Args:
            part: As long on every rank.
            into: ``world`` times as long.

        Raises:
            See ``all_reduce``.
        """
        mine, flat = self._flat(part), self._flat(into)
        if flat.dtype != mine.dtype or flat.size != mine.size * self.world:
            why = f"{self.world} parts of {mine.size} elements do not make {flat.size}"
            raise self._fail(bad_tensor(why))
        with self._collective(Operation.ALL_GATHER, flat):
            chunks = chunks_of(flat, self.world)
            chunks[self.rank][...] = mine
            for piece in self._segments(chunks[self.rank]):
                self._send_all(piece.data)
            for peer in self._peers.values():
                for piece in self._segments(chunks[peer.number]):
                    peer.receive(piece.data)

    def broadcast(self, tensor: Array, root: int = 0) -> None:
        """``root``'s tensor, on every rank.

        Raises:
            See ``all_reduce``.
        """
        flat = self._flat(tensor)
        with self._collective(Operation.BROADCAST, flat, root=root):
            for piece in self._segments(flat):
                if self.rank == root:
                    self._send_all(piece.data)
                else:
                    self._peers[root].receive(piece.data)

    def barrier(self) -> None:
        """Return once every rank has come here.

        Raises:
            See ``all_reduce``.
        """
        with self._collective(Operation.BARRIER, np.empty(0, np.uint8)):
            pass

    def exchange(self, words: bytes) -> list[bytes]:
        """What every rank says, in the order of ranks, this one's included.

        Args:
            words: As long on every rank.

        Raises:
            See ``all_reduce``.
        """
        mine = np.frombuffer(words, np.uint8)
        heard: list[bytes] = []
        with self._collective(Operation.AGREE, mine):
            self._send_all(mine.data)
            for number in range(self.world):
                if number == self.rank:
                    heard.append(words)
                    continue
                room = bytearray(len(words))
                self._peers[number].receive(room)
                heard.append(bytes(room))
        return heard

    def close(self) -> None:
        """End the group once all ranks have everything. Idempotent.

        Raises:
            PeerError: if a rank does not close, or did not get everything.
        """
        with self._failing:
            if self._failed is not None:
                return
            self._failed = PeerError("the group is closed", code="group-closed")
        for peer in self._peers.values():
            peer.stop()
        try:
            for peer in self._peers.values():  # in one order everywhere
                peer.wire.close()
        finally:
            self._abort()

    def abort(self) -> None:
        """End the group without a word, here and on every rank. Idempotent.

        Whoever waits in ``close`` does not wait any more.
        """
        self._fail(PeerError("the group is closed", code="group-closed"))
        self._abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    @contextmanager
    def _collective(
        self,
        operation: Operation,
        flat: Array | DeviceTensor,
        *,
        reduction: Reduction = Reduction.NONE,
        algorithm: Algorithm = Algorithm.TWO_PHASE,
        root: int = 0,
    ) -> Iterator[None]:
        """Announce it and hear all others; afterwards nothing is left to be sent."""
        if not 0 <= root < self.world:
            raise self._fail(
                UsageError(f"the group has no rank {root}", code="bad-world")
            )
        if not self._turn.acquire(blocking=False):
            odd = UsageError("another thread is using this group", code="group-in-use")
            raise self._fail(odd)
        try:
            if self._failed is not None:
                raise self._failed
            announcement = CollectiveAnnouncement(
                number=self._number,
                operation=operation,
                reduction=reduction,
                dtype=DTYPES.index(np.dtype(flat.dtype)),
                algorithm=algorithm,
                root=root,
                elements=flat.size,
                segment_bytes=self.choices.segment_bytes,
                plan=self.choices.digest,
            )
            for peer in self._peers.values():
                peer.announce(announcement)
            yield
            self._hear()
            self._flush()
            self._number += 1
        except SealiftError as error:
            raise self._fail(error) from None
        except BaseException:
            self.abort()
            raise
        finally:
            self._turn.release()

    def _reduce_chunks(
        self, chunks: list[Numbers], reduction: Reduction, *, tell: bool
    ) -> None:
        """Each peer gets its chunk, ours is combined; ``tell`` all, and take theirs.

        A segment of each in turn, so that little is under way. A peer's result comes
        into memory that was sent: it has what it made it of.
        """
        store = self._store_of(chunks[0])
        pieces = [self._segments(chunk) for chunk in chunks]
        for turn in range(max(map(len, pieces)) + 2 * _AHEAD):
            for peer in self._peers.values():
                for piece in _at(pieces[peer.number], turn):
                    peer.send(store.message(piece))
            self._hear()
            for piece in _at(pieces[self.rank], turn - _AHEAD):
                self._combine(store, piece, piece, reduction)
                if tell:
                    self._send_all(store.message(piece))
            for peer in self._peers.values() if tell else ():
                for piece in _at(pieces[peer.number], turn - 2 * _AHEAD):
                    peer.receive(store.message(piece))

    def _reduce_all(self, flat: Numbers, reduction: Reduction) -> None:
        store = self._store_of(flat)
        for piece in self._segments(flat):
            self._send_all(store.message(piece))
        sent = all(peer.idle for peer in self._peers.values())
        into = flat if sent else store.beside(flat)  # else it is sent while we add
        self._hear()
        for ours, out in zip(self._segments(flat), self._segments(into), strict=True):
            self._combine(store, ours, out, reduction)
        if not sent:
            self._flush()
            store.assign(flat, into)

    def _combine(
        self, store: Store[Numbers], ours: Numbers, into: Numbers, reduction: Reduction
    ) -> None:
        """The next segment of every peer and ``ours``, in the order of ranks."""
        total = ours
        for number in range(self.world):
            part = ours
            if number != self.rank:
                part = store.room(number > 0, into)
                self._peers[number].receive(store.message(part))
            if number == 0:
                total = part
            else:  # `into` may be `ours`, so it is written from our turn on
                out = into if number >= self.rank else total
                total = store.combine(reduction, total, part, out)
        if total is not into:
            store.assign(into, total)

    def _store_of(self, flat: Numbers) -> Store[Numbers]:
        """Whoever knows where it lies."""
        if not isinstance(flat, DeviceTensor):
            return self._host
        if self._device is None:
            raise bad_tensor("the tensor is on a device, and the group uses no device")
        return self._device

    def _segments(self, chunk: Numbers) -> list[Numbers]:
        return segments_of(chunk, self.choices.segment_bytes)

    def _hear(self) -> None:
        """Nothing is combined before all ranks announced the same (rule G4)."""
        for peer in self._peers.values():
            peer.hear()

    def _send_all(self, message: Buffer) -> None:
        for peer in self._peers.values():
            peer.send(message)

    def _flush(self) -> None:
        for peer in self._peers.values():
            peer.flush()
        if self._failed is not None:
            raise self._failed

    def _flat(self, tensor: Numbers) -> Numbers:
        try:
            return flat_view(tensor)
        except UsageError as error:
            raise self._fail(error) from None

    def _fail(self, error: SealiftError) -> SealiftError:
        """End the group; return the first error, which is the one to be told."""
        with self._failing:
            first = self._failed is None
            if first:
                self._failed = error
            reason = self._failed
        reason = require_value(reason)
        if first:
            self._abort()
        return reason

    def _abort(self) -> None:
        for peer in self._peers.values():
            peer.stop()
            peer.wire.abort()


def _at(pieces: list[Numbers], turn: int) -> list[Numbers]:
    """The segment of that turn, if there is one."""
    return pieces[turn : turn + 1] if turn >= 0 else []
