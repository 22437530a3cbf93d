"""The owner's end: batches of NumPy arrays or torch tensors go out sealed.

``send`` returns when the device has verified a batch. A ``with`` block that is left in
order tells the device so, by a last transfer; one that is left by an error does not, and
the device reports that batches are missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from sealift.channel.link.announcement import LinkKeys, LinkMode, parse_mode
from sealift.channel.link.send import (
    DEFAULT_DEPTH,
    AheadFeeder,
    LinkSender,
    SealAhead,
    suggested_record_bytes,
)
from sealift.channel.record.opener import scrub
from sealift.channel.transport.tcp import TcpTransport
from sealift.channel.transport.unixsocket import dial_path
from sealift.crypto.identity import Identity
from sealift.errors import PeerError, require_value
from sealift.feed.form import (
    BatchField,
    BatchForm,
    OneCall,
    Spec,
    batch_differs,
    form_of,
    last_word,
)
from sealift.feed.handover import (
    HANDSHAKE_S,
    VERSION,
    FeedConnection,
    Proposal,
    hand_over,
    handshake_with,
    offer_memory,
)
from sealift.feed.terms import (
    FeedDecision,
    File,
    load_agreement,
    load_key,
    owner_endpoint,
    require_possible,
)
from sealift.ids import Digest
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.session.session import connect
from sealift.travel.peers import accelerator_names, expect_accelerator

WAIT_S: Final = 60.0
TIMEOUT_S: Final = 600.0
Batch = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeviceEvidence:
    """What the device's process proved before it got anything.

    Attributes:
        level: What its evidence proves, with what it rehearses.
        code: The code bundle that it runs.
        agreement: The agreement that both work under.
    """

    level: str
    code: Digest
    agreement: Digest


class Sender:
    """Sends batches of one form to one device, by one thread; made by ``offer``.

    Attributes:
        form: Of every batch.
        seen: What the device proved.
    """

    def __init__(
        self,
        link: LinkSender,
        keys: LinkKeys,
        form: BatchForm,
        *,
        seen: DeviceEvidence,
        door: FeedDecision,
    ) -> None:
        self.form = form
        self.seen = seen
        self._link = link
        self._door = door
        self._keys = keys
        self._one_call = OneCall()
        self._packed = bytearray(form.batch_bytes)

    @property
    def num_sent(self) -> int:
        """Batches that the device verified."""
        return self._link.num_sent

    def send(self, batch: Batch) -> None:
        """Send one batch; return when the device verified it.

        Args:
            batch: NumPy arrays or torch tensors by name, of the link's form.

        Raises:
            UsageError: code ``batch-differs``, or ``link-in-use``; the link goes on.
            RefusedError: the owner's rule lets nothing go any more.
            PeerError: code ``device-left``, or ``peer-timeout``.
        """
        with self._one_call:
            self._pack(batch)
            with self._told():
                self._link.send(self._packed)

    def send_ahead(self, batches: Iterable[Batch], depth: int = DEFAULT_DEPTH) -> int:
        """Send batches that are sealed, on a thread, while the device computes.

        Args:
            batches: Taken one after another on that thread, which is waited for, since
                it packs what it takes: a device that left is told of when the next one
                came, and so is an interrupt.
            depth: How many may wait sealed; at least one.

        Returns:
            How many there were; the device verified all of them.

        Raises:
            UsageError: if the link is in another mode than ``seal-ahead``; or code
                ``batch-differs`` or ``link-in-use``.
            PeerError: code ``device-left``, or ``peer-timeout``.
            Exception: whatever ``batches`` raises; those before it were sent.
        """
        with self._one_call:
            before, failed = self.num_sent, list[BaseException]()
            source = self._packed_ones(batches, failed)
            feeder = AheadFeeder(SealAhead(self._link, depth), source)
            try:
                with self._told(failed):
                    self._door.require()  # what waits sealed leaves later than it was packed
                    while feeder.send_next():
                        self._door.require()
            finally:
                feeder.close()
            return self.num_sent - before

    def close(self) -> None:
        """End the link without a last word: the device will miss what should follow."""
        self._link.close()
        self._keys.wipe()
        scrub(self._packed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None and not self._link.life.dead:
                with self._one_call, self._told():
                    self._link.send(last_word(self.num_sent))
        finally:
            self.close()

    def _packed_ones(
        self, batches: Iterable[Batch], failed: list[BaseException]
    ) -> Iterator[bytearray]:
        try:
            for batch in batches:
                if self._link.life.dead:  # and what was packed is overwritten
                    return
                self._pack(batch)
                yield self._packed  # sealed before the next one is asked for
        except Exception as error:
            failed.append(error)
            raise

    def _pack(self, batch: Batch) -> None:
        self._door.require()
        self.form.require_names(batch)
        arrays = {f.name: _array(batch[f.name], f) for f in self.form.fields}
        for field, start in self.form.places():
            room = np.frombuffer(self._packed, np.uint8, field.nbytes, start)
            room.view(_dtype(field)).reshape(field.shape)[...] = arrays[field.name]

    @contextmanager
    def _told(self, not_ours: list[BaseException] | None = None) -> Iterator[None]:
        """Say of a device that is gone what that means here."""
        try:
            yield
        except PeerError as error:
            if error in (not_ours or []):
                raise
            raise _device_left(error, self.num_sent) from None


def offer(
    path: File,
    form: Spec,
    *,
    agreement: File | VerifiedAgreement,
    identity: File | Identity,
    passphrase: str | None = None,
    passphrase_file: File | None = None,
    development: bool = False,
    mode: str = LinkMode.SEAL_AHEAD,
    collateral: File | None = None,
    references: Iterable[File] = (),
    peer_uid: int | None = None,
    wait_s: float = WAIT_S,
    timeout_s: float = TIMEOUT_S,
) -> Sender:
    """Meet the process of a device, appraise its evidence, and be ready to send.

    Args:
        path: Unix socket where ``accept`` listens, or soon will.
        form: Element type and shape of every array of a batch, by name.
        agreement: The signed agreement, in force; this identity is a data owner of it.
        identity: The owner's identity file, or an unlocked identity.
        passphrase: Of the file; or
        passphrase_file: a file whose first line it is.
        development: Take development evidence, which protects nobody.
        mode: ``seal-ahead``, or ``direct+parallel-auth+overlap``.
        collateral: What vendors say of their hardware, to judge a TEE with.
        references: Signed sets of reference values that the agreement names.
        peer_uid: User that the device's process runs as; this one's by default.
        wait_s: How long to wait for it.
        timeout_s: How long it may take from one batch to the next.

    Raises:
        RefusedError: it is not what the agreement demands, or does not take such
            batches (``link-refused``).
        PeerError: nobody listens there, or it refused us.
        UsageError, MalformedError, UnavailableError: something is wrong here.
    """
    folder = None
    if not isinstance(agreement, VerifiedAgreement):
        folder = Path(agreement).parent
    batch_form, link_mode = form_of(form), parse_mode(mode)
    agreement = load_agreement(agreement, collateral=collateral, references=references)
    require_possible(agreement, development=development)
    owner = load_key(identity, passphrase, passphrase_file)
    endpoint, policy = (
        owner_endpoint(agreement, owner),
        expect_accelerator(agreement, accelerator_names()[0]),
    )
    sock = dial_path(Path(path), wait_s, peer_uid=peer_uid)
    transport = TcpTransport(sock, send_timeout_s=HANDSHAKE_S)
    whom, began_s = f"the process that listens at {path}", time.monotonic()
    with handshake_with(whom):
        session = connect(transport, endpoint, policy, HANDSHAKE_S)
    proposal = Proposal(
        version=VERSION,
        mode=link_mode.value,
        form=batch_form,
        record_bytes=suggested_record_bytes(batch_form.batch_bytes),
        process=os.getpid(),
    )
    with ExitStack() as undo:
        connection = FeedConnection(session, transport, sock)
        undo.callback(connection.close)
        door = FeedDecision(agreement, folder, owner, session.peer, began_s)
        door.require()
        result = require_value(session.peer.result, "nothing is fed without evidence")
        seen = DeviceEvidence(
            result.standing, agreement.agreement.code.digest, agreement.digest
        )
        with handshake_with(whom):
            consent = hand_over(connection, proposal, HANDSHAKE_S)
        keys = connection.keys(proposal, consent)
        memory = offer_memory(connection.leave_session(), proposal, consent, peer_uid)
        undo.callback(memory.close)
        undo.callback(keys.wipe)
        link = LinkSender(
            memory,
            keys,
            mode=link_mode,
            record_bytes=proposal.record_bytes,
            timeout_s=timeout_s,
        )
        undo.pop_all()
    return Sender(link, keys, batch_form, seen=seen, door=door)


def _array(given: Any, field: BatchField) -> NDArray[Any]:
    """An array of exactly that field; torch is looked at by its ways, not imported."""
    try:
        array = given.detach().cpu().numpy() if hasattr(given, "detach") else given
        array = np.asarray(array)
    except (TypeError, ValueError, NotImplementedError) as error:
        kind = f"{type(given).__name__} {getattr(given, 'dtype', '')}".strip()
        raise batch_differs(f"{field.name} is {kind}", str(field)) from error
    if array.dtype != _dtype(field) or array.shape != field.shape:
        found = f"{field.name} is {array.dtype} {array.shape}"
        raise batch_differs(found, str(field))
    return array


def _dtype(field: BatchField) -> np.dtype[Any]:
    return np.dtype(field.dtype).newbyteorder("<")


def _device_left(error: PeerError, num_sent: int) -> PeerError:
    late = error.code == "peer-timeout"
    return PeerError(
        "the device's process did not ask for the next batch in time"
        if late
        else "the device's process ended the link",
        why=f"{num_sent} batches were received and verified before",
        fix="Set a longer limit with timeout_s="
        if late
        else "See the error that the device's process printed",
        code="peer-timeout" if late else "device-left",
    )
