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

What a group does with contributions that lie on a device: the same sums, in its memory.

Contributions of others are opened into memory of the group's own there, and are added once
they verified (rule N10), in the order of ranks: the bits are those of a sum in the host's
memory, those of a NaN aside. The host sees none of them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from sealift.channel.device.device import DeviceMemory, DeviceTensor, SummingEngine
from sealift.collective.announcement import (
    Algorithm,
    CollectiveAnnouncement,
    Operation,
    Reduction,
)
from sealift.collective.peer import Peer, Wire
from sealift.collective.tensors import (
    DTYPES,
    Array,
    HostStore,
    Numbers,
    Store,
    bad_tensor,
    chunks_of,
    demand_reducible,
    flat_view,
    segments_of,
)
from sealift.errors import JobError, PeerError, SealiftError, UsageError, require_value
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


class DeviceStore:
    """Where a group's tensors lie; see ``tensors.HostStore``.

    Args:
        engine: Adds; whoever made it closes it after the group.
    """

    def __init__(self, engine: SummingEngine) -> None:
        self.engine = engine
        self._rooms: dict[int, DeviceMemory] = {}

    def message(self, piece: DeviceTensor) -> DeviceTensor:
        """What a peer is sent, or sends."""
        return piece

    def room(self, second: bool, like: DeviceTensor) -> DeviceTensor:
        """Private memory for a segment."""
        return self._room(int(second), like)

    def beside(self, flat: DeviceTensor) -> DeviceTensor:
        """Memory for a sum that is not to lie where its tensor does."""
        return self._room(2, flat)

    def combine(
        self, reduction: Reduction, a: DeviceTensor, b: DeviceTensor, out: DeviceTensor
    ) -> DeviceTensor:
        """Queue ``out = a + b``; ``out`` may be either."""
        if reduction is not Reduction.SUM:
            raise bad_tensor(f"{reduction.name.lower()} is not supported on a device")
        if out == b:  # an addition of two numbers has the same bits either way
            a, b = b, a
        if out != a:
            self.engine.copy(out, a)
        self.engine.add(out, b)
        return out

    def assign(self, out: DeviceTensor, value: DeviceTensor) -> None:
        """Queue ``out = value``."""
        self.engine.copy(out, value)

    def close(self) -> None:
        """Scrub the group's own memory there, and give it back. Idempotent."""
        rooms, self._rooms = self._rooms, {}
        with ExitStack() as closing:
            for each in rooms.values():
                closing.callback(each.close)

    def _room(self, number: int, like: DeviceTensor) -> DeviceTensor:
        found = self._rooms.get(number)
        if found is None or found.nbytes < like.nbytes:
            if found is not None:
                found.close()
            found = self._rooms[number] = self.engine.allocate(like.nbytes)
        return DeviceTensor(found, 0, like.size, like.dtype)


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
        self._sent: Counter[int] = Counter()  # messages to and from one other rank
        self._received: Counter[int] = Counter()
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

    def reduce(
        self, tensor: Array, root: int = 0, reduction: Reduction = Reduction.SUM
    ) -> None:
        """Combine everybody's ``tensor``; ``root``'s gets the result, others stay.

        Raises:
            See ``all_reduce``.
        """
        flat = self._flat(tensor)
        with self._collective(Operation.REDUCE, flat, reduction=reduction, root=root):
            if self.rank == root:
                self._hear()
            for piece in self._segments(flat):
                if self.rank == root:
                    self._combine(self._host, piece, piece, reduction)
                else:
                    self._peers[root].send(piece.data)

    def gather(self, part: Array, into: Array | None, root: int = 0) -> None:
        """Everybody's ``part``, end to end in the order of ranks, at ``root`` alone.

        Args:
            part: As long on every rank.
            into: At ``root``, ``world`` times as long; None elsewhere.
            root: Who gets them.

        Raises:
            See ``all_reduce``.
        """
        mine = self._flat(part)
        rooms = self._rooms(mine, into, root)
        with self._collective(Operation.GATHER, mine, root=root):
            if self.rank != root:
                self._send_pieces(self._peers[root], mine)
            for number, room in enumerate(rooms):
                self._take_part(number, mine, room)

    def scatter(self, whole: Array | None, part: Array, root: int = 0) -> None:
        """``root``'s ``whole``, a part for each rank in their order.

        Args:
            whole: At ``root``, ``world`` times as long as ``part``; None elsewhere.
            part: Gets this rank's part.
            root: Whose.

        Raises:
            See ``all_reduce``.
        """
        mine = self._flat(part)
        rooms = self._rooms(mine, whole, root)
        with self._collective(Operation.SCATTER, mine, root=root):
            if self.rank != root:
                self._take_part(root, mine, mine)
                return
            for number, room in enumerate(rooms):
                if number == root:
                    mine[...] = room
                else:
                    self._send_pieces(self._peers[number], room)

    def all_to_all(self, parts: Sequence[Array], into: Sequence[Array]) -> None:
        """``parts[k]`` goes to rank k; what rank k has for this one comes into ``into[k]``.

        Args:
            parts: One for each rank, of one element type; lengths may differ.
            into: One for each rank, as long as what that rank sends.

        Raises:
            JobError: code ``ranks-drifted``, if a rank sends another length.
            See ``all_reduce`` for others.
        """
        out = [self._flat(each) for each in parts]
        rooms = [self._flat(each) for each in into]
        if len(out) != self.world or len(rooms) != self.world:
            raise self._fail(bad_tensor(f"{self.world} ranks need as many parts"))
        if len({each.dtype for each in out + rooms}) != 1:
            raise self._fail(bad_tensor("its parts have different element types"))
        lengths = [each.size.to_bytes(8, "big") for each in out]
        with self._collective(Operation.ALL_TO_ALL, out[0][:0]):
            for number, peer in self._peers.items():
                peer.send(lengths[number])
                self._send_pieces(peer, out[number])
            for number, room in enumerate(rooms):
                if number != self.rank:
                    self._demand_length(number, room.size)
                self._take_part(number, out[number], room)

    def send(
        self, tensor: Array, to: int, sent: Callable[[SealiftError | None], None],
        tag: int = 0,
    ) -> None:  # fmt: skip
        """Send to one rank, which calls ``receive``. Returns before it has gone.

        Messages of a pair and collectives of the group keep their order: the other rank
        must ask for them in the order in which they are sent.

        Args:
            tensor: As in ``all_reduce``; used until ``sent`` is called.
            to: The other rank.
            sent: Called once it has gone, with the error if it has not. From any thread.
            tag: Both sides' name of the message, from 0.

        Raises:
            PeerError: if the group has ended.
            UsageError: ``bad-tensor``, ``bad-world``, or ``group-in-use``.
        """
        flat = self._flat(tensor)
        peer = self._other(to)
        with self._in_turn():
            number, self._sent[to] = self._sent[to], self._sent[to] + 1
            announcement = self._message(flat, number, self.rank, tag)
            peer.send(announcement.encode())
            self._send_pieces(peer, flat)
        peer.call_when_sent(lambda error: sent(error or self._failed))

    def receive(self, tensor: Array, sender: int, tag: int = 0) -> None:
        """Receive what one rank sends by ``send``; may run beside calls of ``send``.

        Args:
            tensor: Gets it: as many elements, of the same type.
            sender: The other rank.
            tag: As the sender says.

        Raises:
            See ``all_reduce``.
        """
        flat = self._flat(tensor)
        peer = self._other(sender)
        number, self._received[sender] = (
            self._received[sender],
            self._received[sender] + 1,
        )
        try:
            if self._failed is not None:
                raise self._failed
            peer.expect(self._message(flat, number, sender, tag))
            peer.hear()
            for piece in self._segments(flat):
                peer.receive(piece.data)
        except SealiftError as error:
            raise self._fail(error) from None
        except BaseException:
            self.abort()
            raise

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
        with self._in_turn():
            demand_reducible(np.dtype(flat.dtype), reduction)
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

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """One thread at a time; whatever fails ends the group."""
        if not self._turn.acquire(blocking=False):
            odd = UsageError("another thread uses this group", code="group-in-use")
            raise self._fail(odd)
        try:
            if self._failed is not None:
                raise self._failed
            yield
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

    def _message(
        self, flat: Array, number: int, sender: int, tag: int
    ) -> CollectiveAnnouncement:
        return CollectiveAnnouncement(
            number=number,
            operation=Operation.SEND,
            dtype=DTYPES.index(flat.dtype),
            root=sender,
            elements=flat.size,
            segment_bytes=self.choices.segment_bytes,
            plan=self.choices.digest,
            tag=tag,
        )

    def _other(self, number: int) -> Peer:
        try:
            return self._peers[number]
        except KeyError:
            odd = UsageError(f"there is no other rank {number}", code="bad-world")
            raise self._fail(odd) from None

    def _rooms(self, part: Array, whole: Array | None, root: int) -> list[Array]:
        """A part for each rank at the root; none elsewhere."""
        if self.rank != root or whole is None:
            if (self.rank == root) is (whole is None):
                raise self._fail(bad_tensor("the root alone has everybody's parts"))
            return []
        flat = self._flat(whole)
        if flat.dtype != part.dtype or flat.size != part.size * self.world:
            why = f"{self.world} parts of {part.size} are not {flat.size}"
            raise self._fail(bad_tensor(why))
        return chunks_of(flat, self.world)

    def _send_pieces(self, peer: Peer, flat: Array) -> None:
        for piece in self._segments(flat):
            peer.send(piece.data)

    def _take_part(self, number: int, mine: Array, room: Array) -> None:
        """What a rank sends, this one's own from ``mine``."""
        if number == self.rank:
            if mine.size != room.size:
                raise bad_tensor(f"{mine.size} elements do not fill {room.size}")
            room[...] = mine
            return
        for piece in self._segments(room):
            self._peers[number].receive(piece.data)

    def _demand_length(self, number: int, elements: int) -> None:
        said = bytearray(8)
        self._peers[number].receive(said)
        if int.from_bytes(said, "big") != elements:
            raise JobError(
                f"rank {number} sends {int.from_bytes(said, 'big')} elements",
                why=f"this one has room for {elements}",
                code="ranks-drifted",
                ranks=(number,),
            )

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
