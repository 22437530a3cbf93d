"""The device's end: batches come as tensors on the device, each after its verdict.

Strict, without exception: a batch is handed out when all of its records verified, so no
optimizer step, and nothing else, is taken on one that did not. When one fails, the memory
that it came into is overwritten, the link is over, and ``AuthenticationError`` is raised
in place of the batch. What is handed out is the caller's own, in memory of its own.

Where the batches of a link come to: an engine, and its memory for one of them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from sealift.attest.evidence import Attester
from sealift.channel.device.device import DeviceEngine, DeviceMemory
from sealift.channel.device.host import HostMemory
from sealift.channel.link.announcement import parse_mode
from sealift.channel.link.receive import LinkReceiver
from sealift.channel.record.record import dead_stream
from sealift.channel.select import DeviceSelection, select_device
from sealift.channel.transport.tcp import TcpTransport
from sealift.channel.transport.unixsocket import PathListener
from sealift.crypto.identity import Identity
from sealift.errors import MalformedError, PeerError, UsageError
from sealift.feed.form import (
    LAST_WORD,
    BatchField,
    BatchForm,
    OneCall,
    Spec,
    batch_differs,
    form_of,
    require_last_word,
)
from sealift.feed.handover import (
    HANDSHAKE_S,
    FeedConnection,
    handshake_with,
    take_memory,
    take_over,
)
from sealift.feed.terms import (
    File,
    device_endpoint,
    expect_owner,
    load_agreement,
    load_key,
)
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.session.session import accept as accept_session

WAIT_S: Final = 60.0
TIMEOUT_S: Final = 600.0


HOST_SLOTS: Final = 8
APART_SLOTS: Final = 32  # half of them are taken by one call there


@dataclass(frozen=True, slots=True)
class ReceivingDevice:
    """Where batches come to.

    Attributes:
        engine: Opens records.
        memory: Room for one batch.
        opened_by: Which engine it is, and why.
        ordinal: Which GPU, if it is one.
    """

    engine: DeviceEngine
    memory: DeviceMemory
    opened_by: str
    ordinal: int

    @property
    def slots(self) -> int:
        """Records that should wait in the link's memory."""
        return HOST_SLOTS if isinstance(self.memory, HostMemory) else APART_SLOTS


def _open_device(
    device: str | DeviceEngine, nbytes: int, parts: ExitStack
) -> ReceivingDevice:
    """A device by its name, or the engine that was given, with memory for a batch.

    Args:
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``; or an engine, which ``parts``
            does not close.
        nbytes: Of a batch.
        parts: Closes what was made here.

    Raises:
        UsageError: if there is no such device.
        UnavailableError: if this machine lacks it, or its memory.
    """
    ordinal = 0
    if isinstance(device, str):
        chosen, ordinal = _select(device)
        parts.callback(chosen.engine.close)
    else:
        chosen = DeviceSelection(device, f"{device.name}: given by the caller")
    memory = chosen.engine.allocate(nbytes)
    parts.callback(memory.close)
    return ReceivingDevice(chosen.engine, memory, chosen.reason, ordinal)


def _select(device: str) -> tuple[DeviceSelection, int]:
    kind, _, number = device.partition(":")
    known = {"auto": None, "cpu": "host", "cuda": "cuda"}
    numbered = not number or (kind == "cuda" and number.isdecimal())
    if kind not in known or not numbered:
        raise UsageError(
            f"the device {device!r} is unknown",
            fix="Use one of: auto, cpu, cuda, cuda:1",
        )
    ordinal = int(number or 0)
    return select_device(prefer=known[kind], ordinal=ordinal), ordinal


class Receiver:
    """Receives batches of one form from one owner, by one thread; made by ``accept``.

    Attributes:
        form: Of every batch.
        owner: Name of the party that sends.
        opened_by: Which engine opens records, and why.
    """

    def __init__(
        self,
        link: LinkReceiver,
        *,
        form: BatchForm,
        owner: str,
        device: ReceivingDevice,
        parts: ExitStack,
    ) -> None:
        self.form = form
        self.owner = owner
        self.opened_by = device.opened_by
        self._link = link
        self._engine = device.engine
        self._memory = device.memory
        self._ordinal = device.ordinal
        self._parts = parts
        self._num_received = 0
        self._ended = False  # by a last word: no error any more
        self._closed = False
        self._one_call = OneCall()

    @property
    def num_received(self) -> int:
        """Batches that verified."""
        return self._num_received

    def receive(self) -> dict[str, Any] | None:
        """The next batch as tensors on the device, by name; None after the last one.

        Raises:
            AuthenticationError: if it is not exactly what the owner sealed.
            PeerError: code ``feed-truncated``, if the owner is gone before it said that
                this was all; ``peer-timeout``.
            UsageError: code ``link-in-use``; ``dead-stream``, if it was closed.
        """
        with self._one_call:
            if not self._next():
                return None
            with self._not_closed_meanwhile():
                batch = {name: view.clone() for name, view in self._views()}
                self._settle()
            return batch

    def receive_into(self, out: Mapping[str, Any]) -> bool:
        """The next batch into tensors or NumPy arrays that are there; False after all.

        Args:
            out: By name, of the link's form; torch tensors on any device, or
                contiguous arrays. They keep what they have unless all of it verified.

        Raises:
            UsageError: code ``batch-differs``, before anything is received; or as
                ``receive``.
            AuthenticationError, PeerError: as ``receive``.
        """
        self.form.require_names(out)
        for field in self.form.fields:
            _require_room(out[field.name], field)
        with self._one_call:
            if not self._next():
                return False
            with self._not_closed_meanwhile():
                self._copy_into(out)
            return True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Batches until the owner says that there are no more; raises as ``receive``."""
        while (batch := self.receive()) is not None:
            yield batch

    def close(self) -> None:
        """End the link and overwrite its memory. Idempotent."""
        self._closed = True
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _next(self) -> bool:
        if self._ended:
            return False
        try:
            arrival = self._link.receive(self._memory)
        except PeerError as error:
            self.close()
            raise _owner_left(error, self._num_received) from None
        if arrival.total_bytes == LAST_WORD.size:
            self._end()
            return False
        if arrival.total_bytes != self.form.batch_bytes:
            self.close()
            raise MalformedError(
                "the batch has another length than its form", code="bad-batch"
            )
        self._num_received += 1
        return True

    def _end(self) -> None:
        found = bytearray(LAST_WORD.size)
        self._engine.download(self._memory, 0, found).wait()
        self.close()
        require_last_word(bytes(found), self._num_received)
        self._ended = True

    def _views(self) -> Iterator[tuple[str, Any]]:
        """Every field of the batch in the device's memory."""
        import torch  # whoever asks for tensors waits for it

        from sealift.data.loader.memories import device_tensor

        flat = device_tensor(self._memory, torch.device("cuda", self._ordinal))
        for field, start in self.form.places():
            part = flat[start : start + field.nbytes]
            yield field.name, part.view(getattr(torch, field.dtype)).view(field.shape)

    @contextmanager
    def _not_closed_meanwhile(self) -> Iterator[None]:
        """Refuse what was copied while another thread overwrote it."""
        try:
            yield
        except Exception:
            if not self._closed:
                raise
        if self._closed:
            raise dead_stream() from None

    def _copy_into(self, out: Mapping[str, Any]) -> None:
        arrays = {n: each for n, each in out.items() if isinstance(each, np.ndarray)}
        for field, start in self.form.places():
            if field.name in arrays:
                room = arrays[field.name].reshape(-1).view(np.uint8).data
                self._engine.download(self._memory, start, room).wait()
        if len(arrays) < len(out):
            self._copy_tensors({n: t for n, t in out.items() if n not in arrays})

    def _copy_tensors(self, out: Mapping[str, Any]) -> None:
        for name, view in self._views():
            if name in out:
                out[name].detach().copy_(view)
        self._settle()

    def _settle(self) -> None:
        """Wait until torch has read the memory: the next batch goes there."""
        import torch

        if not isinstance(self._memory, HostMemory):
            torch.cuda.current_stream(self._ordinal).synchronize()


def accept(
    path: File,
    form: Spec,
    *,
    agreement: File | VerifiedAgreement,
    code: File,
    identity: File | Identity | None = None,
    passphrase: str | None = None,
    passphrase_file: File | None = None,
    attester: Attester | None = None,
    owner: str = "",
    device: str | DeviceEngine = "auto",
    peer_uid: int | None = None,
    wait_s: float = WAIT_S,
    timeout_s: float = TIMEOUT_S,
) -> Receiver:
    """Wait for a data owner, prove what runs here, and be ready to receive.

    Args:
        path: Unix socket to listen at; it is gone when somebody came.
        form: Element type and shape of every array of a batch, by name.
        agreement: The signed agreement, in force.
        code: Folder with the code that runs here; the agreement names it by digest.
        identity: Of the development attester: identity file, or unlocked.
        passphrase: Of the file; or
        passphrase_file: a file whose first line it is.
        attester: What makes evidence, for any other level; it has measured ``code``.
        owner: Name of the data owner that may come; any of the agreement by default.
        device: ``auto`` (the GPU, if this machine shows one), ``cpu``, ``cuda``,
            ``cuda:1``; or an engine, which is not closed.
        peer_uid: User that the owner's process runs as; this one's by default.
        wait_s: How long to wait for the owner.
        timeout_s: How long it may take from one batch to the next.

    Raises:
        RefusedError: who came is not who the agreement names, or sends other batches.
        PeerError: nobody came, or it refused us.
        UsageError, MalformedError, UnavailableError: something is wrong here.
    """
    batch_form = form_of(form)
    agreement = load_agreement(agreement)
    key = None
    if identity is not None:
        key = load_key(identity, passphrase, passphrase_file)
    endpoint = device_endpoint(agreement, code, identity=key, attester=attester)
    policy = expect_owner(agreement, owner)
    with ExitStack() as parts:
        found = _open_device(device, batch_form.batch_bytes, parts)
        sock = _await_owner(Path(path), peer_uid, wait_s)
        transport = TcpTransport(sock, send_timeout_s=HANDSHAKE_S)
        whom = f"the process that connected to {path}"
        with handshake_with(whom):
            session = accept_session(transport, endpoint, policy, HANDSHAKE_S)
        name = session.peer.name
        connection = FeedConnection(session, transport, sock)
        with ExitStack() as undo:
            undo.callback(connection.close)
            proposal, consent = take_over(
                connection,
                batch_form,
                found.slots,
                HANDSHAKE_S,
            )
            keys = connection.keys(proposal, consent)
            bare = connection.leave_session()
            with handshake_with(whom):
                memory = take_memory(bare, proposal, consent, peer_uid, HANDSHAKE_S)
            undo.callback(memory.close)
            undo.callback(keys.wipe)
            link = LinkReceiver(
                memory,
                keys,
                found.engine,
                mode=parse_mode(proposal.mode),
                timeout_s=timeout_s,
            )
            undo.pop_all()
            keys.wipe()  # streams were derived from them
        parts.callback(link.close)  # first of all: it writes into the memory
        return Receiver(
            link, form=batch_form, owner=name, device=found, parts=parts.pop_all()
        )


def _await_owner(path: Path, peer_uid: int | None, wait_s: float) -> socket.socket:
    listener = PathListener(path, peer_uid=peer_uid)
    try:
        return listener.accept(wait_s)
    except PeerError as error:
        raise PeerError(
            f"no owner connected to {path} within {wait_s:g} s",
            fix=(
                "Start the owner's process with the same path, or wait longer (wait_s=)"
            ),
            code=error.code,
        ) from None
    finally:
        listener.close()


def _require_room(room: Any, field: BatchField) -> None:
    """Refuse what a field cannot be received into."""
    dtype = str(room.dtype).removeprefix("torch.")
    if dtype != field.dtype or tuple(room.shape) != field.shape:
        found = f"{field.name} is {dtype} {tuple(room.shape)}"
        raise batch_differs(found, str(field))
    if isinstance(room, np.ndarray) and not room.flags.carray:
        raise batch_differs(f"{field.name} is not contiguous", str(field))


def _owner_left(error: PeerError, num_received: int) -> PeerError:
    late = error.code == "peer-timeout"
    return PeerError(
        "the owner sent no batch in time"
        if late
        else "the owner's process ended before it sent the end of the batches",
        why=f"{num_received} batches were received completely",
        fix="Set a longer limit with timeout_s="
        if late
        else "See the error that the owner's process printed",
        code="peer-timeout" if late else "feed-truncated",
    )
