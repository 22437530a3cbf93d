"""The lease, and the frames that it allows (spec/visit.md).

A lease is a single-use, signed, write-only capability on one buffer. It names the buffer
by handle, never by address, and is bound to the accelerator's instance key, which is
fresh per process: a lease replayed to a restarted accelerator is a lease for somebody
else. Seconds count from acceptance, never from a wall clock (rule H5).

A frame is a record of the owner's sealed file, crossing unopened (rule C6). The frame's
MAC, under the visit key, says where the record goes in this visit; the record's own tag,
under the data key, says that it is what was sealed at home. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final, Literal

from sealift.codec import encode
from sealift.crypto.aead import TAG_BYTES
from sealift.crypto.hash import keyed_hash, verify_equal
from sealift.crypto.keys import Label, SecretKey
from sealift.crypto.sign import Form, PublicKey, SignedDocument
from sealift.data.schedule.visits import Stop
from sealift.errors import MalformedError, PolicyError
from sealift.ids import Buffer, Digest, Handle, VisitId
from sealift.release.agreement import Agreement, Purpose, RunTerms


@dataclass(frozen=True, kw_only=True)
class Lease:
    """What one holder may do during one visit.

    Attributes:
        accelerator: Instance key of the process that owns the buffer.
        offset: Where in the buffer the cargo starts, in bytes.
        max_bytes: Largest number of bytes that may be placed.
        shape: (rows, bytes per row) of the cargo; its dtype is raw bytes.
        first_row: First row of the holder's resource that is in the cargo.
        lease_s: Seconds from acceptance until frames are refused.
        content: The resource's content commitment in the agreement.
        run: What the job sets: the accelerator's own, which the owner compares with the
            agreement.
    """

    FORM: ClassVar = Form(Label.LEASE, "lease")

    job: str
    visit: VisitId
    agreement: Digest
    accelerator: PublicKey
    holder: str
    resource: str
    purpose: Purpose
    handle: Handle
    offset: int
    max_bytes: int
    dtype: Literal["uint8"]
    shape: tuple[int, int]
    first_row: int
    mode: Literal["write-only"]
    lease_s: float
    content: Digest
    run: RunTerms

    def __post_init__(self) -> None:
        rows, row_bytes = self.shape
        if rows < 1 or row_bytes < 1 or self.first_row < 0 or self.offset < 0:
            raise MalformedError("a lease must cover at least one row", field="shape")
        if rows * row_bytes > self.max_bytes:
            raise MalformedError(
                "the rows are longer than the lease", field="max_bytes"
            )
        if not 0 < self.lease_s < 7 * 86_400:
            raise MalformedError(
                "the lease's duration is out of range", field="lease_s"
            )

    @property
    def start_byte(self) -> int:
        """Where the cargo starts in the plaintext of the resource."""
        return self.first_row * self.shape[1]

    @property
    def stop(self) -> Stop:
        """Its rows; of which epoch the orchestrator alone says."""
        rows = self.shape[0]
        return Stop(0, self.holder, self.resource, self.purpose, self.first_row, rows)

    @property
    def cargo_bytes(self) -> int:
        """Length of the cargo."""
        return self.shape[0] * self.shape[1]

    @cached_property
    def digest(self) -> Digest:
        """Digest of the canonical bytes; in every frame's MAC, so made once."""
        return Digest.of(encode(self))


SignedLease = SignedDocument[Lease]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """What a lease must say for its reader to accept it.

    Attributes:
        longest_s: Most seconds that the agreement lets a lease last.
        run: What the reader's own job file sets.
    """

    orchestrator: PublicKey
    agreement: Digest
    accelerator: PublicKey
    longest_s: float
    run: RunTerms

    @classmethod
    def under(
        cls, agreement: Agreement, accelerator: PublicKey, run: RunTerms
    ) -> LeaseTerms:
        """What an agreement asks of a job's leases, with this instance."""
        return cls(
            orchestrator=agreement.party(agreement.operator).sign,
            agreement=agreement.digest,
            accelerator=accelerator,
            longest_s=agreement.travel_rule.lease_s,
            run=run,
        )


def verify_lease(signed: SignedLease, terms: LeaseTerms) -> Lease:
    """Return the lease if the orchestrator signed it and it is for this reader.

    Raises:
        AuthenticationError: if the signature does not verify.
        PolicyError: if it is for another job, agreement or accelerator, or lasts longer
            than agreed.
    """
    lease = signed.verify(terms.orchestrator)
    for name in ("agreement", "accelerator"):
        if getattr(lease, name) != getattr(terms, name):
            raise PolicyError(
                f"the lease belongs to another {name}", code="foreign-lease"
            )
    if lease.job != terms.run.job:
        raise PolicyError("the lease belongs to another job", code="foreign-lease")
    if encode(lease.run) != encode(terms.run):
        raise PolicyError("the lease belongs to another run", code="foreign-lease")
    check_seconds(lease.lease_s, terms.longest_s)
    return lease


def check_seconds(lease_s: float, longest_s: float) -> None:
    """A lease lasts no longer than the parties agreed.

    Raises:
        PolicyError: if it would.
    """
    if lease_s > longest_s:
        raise PolicyError(
            f"a lease of {lease_s:g} s is longer than agreed",
            why=f"the agreement allows {longest_s:g} s",
            code="lease-exceeds-agreement",
        )


VERSION: Final = 1
MAC_BYTES: Final = 32
_FIELDS: Final = struct.Struct(">BxxxIQ16sQQ")
HEADER_BYTES: Final = _FIELDS.size + MAC_BYTES


@dataclass(frozen=True, slots=True)
class RecordTarget:
    """Where the bytes of one record go.

    Attributes:
        sequence: Position in this visit, from 0.
        record: Index of the record in the sealed file.
        offset: Offset in the buffer, in bytes.
        length: Bytes of the record's plaintext that are placed.
        skip: Bytes at the record's start that lie before the cargo.
    """

    sequence: int
    record: int
    offset: int
    length: int
    skip: int


def frame_bytes(record_bytes: int) -> int:
    """The longest frame of a file with records of this size."""
    return HEADER_BYTES + record_bytes + TAG_BYTES


def record_range(lease: Lease, record_bytes: int) -> range:
    """The records of the sealed file that hold the lease's rows."""
    first = lease.start_byte // record_bytes
    last = (lease.start_byte + lease.cargo_bytes - 1) // record_bytes
    return range(first, last + 1)


def placement(lease: Lease, sequence: int, record_bytes: int) -> RecordTarget:
    """Where frame number ``sequence`` of this lease must go."""
    record = record_range(lease, record_bytes)[sequence]
    start, end = lease.start_byte, lease.start_byte + lease.cargo_bytes
    low = max(start, record * record_bytes)
    high = min(end, (record + 1) * record_bytes)
    skip = low - record * record_bytes
    return RecordTarget(sequence, record, lease.offset + low - start, high - low, skip)


def frame_head(
    visit_key: SecretKey,
    lease: Digest,
    handle: Handle,
    place: RecordTarget,
    tag: Buffer,
) -> bytes:
    """Fields and MAC of the frame around the record that ends in ``tag``.

    Args:
        lease: Digest of the whole lease, under the MAC.
        handle: Names the buffer.
    """
    fields = _FIELDS.pack(
        VERSION,
        place.sequence,
        place.record,
        handle.raw,
        place.offset,
        place.length,
    )
    return fields + _mac(visit_key, lease, fields, tag)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as received: nothing in it is to be believed before ``authenticate``."""

    fields: bytes
    sequence: int
    record_index: int
    handle: Handle
    offset: int
    length: int
    mac: bytes
    record: memoryview

    def authenticate(self, visit_key: SecretKey, lease: Digest) -> None:
        """Check the MAC.

        Raises:
            AuthenticationError: if it was not made with this visit's key and lease.
        """
        tag = self.record[-TAG_BYTES:]
        verify_equal(_mac(visit_key, lease, self.fields, tag), self.mac)


def parse_frame(raw: Buffer) -> Frame:
    """Split a frame into its fields.

    Raises:
        MalformedError: if it is too short or of another version.
    """
    view = memoryview(raw)
    if len(view) < HEADER_BYTES + TAG_BYTES:
        raise MalformedError("the visit frame is too short", offset=len(view))
    fields = bytes(view[: _FIELDS.size])
    version, sequence, record, handle, offset, length = _FIELDS.unpack(fields)
    if version != VERSION or fields[1:4] != bytes(3):
        raise MalformedError(
            f"the visit frame has version {version}", why="this Sealift reads version 1"
        )
    mac = bytes(view[_FIELDS.size : HEADER_BYTES])
    body = view[HEADER_BYTES:]
    return Frame(fields, sequence, record, Handle(handle), offset, length, mac, body)


def _mac(key: SecretKey, lease: Digest, fields: bytes, tag: Buffer) -> bytes:
    return keyed_hash(key, lease.raw, fields, tag)
