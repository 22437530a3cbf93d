"""The lease: a single-use, signed, write-only capability on one buffer (spec/visit.md).

It names a buffer by handle, never by address, and is bound to the accelerator's
instance key, which is fresh per process: a lease replayed to a restarted accelerator
is a lease for somebody else. Seconds count from acceptance, never from a wall clock
(rule H5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sealift.codec import encode
from sealift.crypto.kdf import Label
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import MalformedError, PolicyError
from sealift.ids import Digest, Handle, VisitId
from sealift.release.agreement import Purpose


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
    """

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

    def __post_init__(self) -> None:
        rows, row_bytes = self.shape
        if rows < 1 or row_bytes < 1 or self.first_row < 0 or self.offset < 0:
            raise MalformedError("a lease covers at least one row", field="shape")
        if rows * row_bytes > self.max_bytes:
            raise MalformedError(
                "the cargo is longer than the lease", field="max_bytes"
            )
        if not 0 < self.lease_s < 7 * 86_400:
            raise MalformedError("lease seconds out of range", field="lease_s")

    @property
    def start_byte(self) -> int:
        """Where the cargo starts in the plaintext of the resource."""
        return self.first_row * self.shape[1]

    @property
    def cargo_bytes(self) -> int:
        """Length of the cargo."""
        return self.shape[0] * self.shape[1]

    @cached_property
    def digest(self) -> Digest:
        """Digest of the canonical bytes; in every frame's MAC, so made once."""
        return Digest.of(encode(self))


@dataclass(frozen=True, slots=True)
class SignedLease:
    """A lease and its signature, not verified yet."""

    lease: Lease
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """What a lease must say for its reader to accept it.

    Attributes:
        longest_s: Most seconds that the agreement lets a lease last.
    """

    orchestrator: PublicKey
    job: str
    agreement: Digest
    accelerator: PublicKey
    longest_s: float


def sign_lease(lease: Lease, signer: Signer) -> SignedLease:
    """Grant: sign the lease as the orchestrator."""
    return SignedLease(lease, signer.sign(Label.LEASE, encode(lease)))


def verify_lease(signed: SignedLease, terms: LeaseTerms) -> Lease:
    """Return the lease if the orchestrator signed it and it is for this reader.

    Raises:
        AuthenticationError: if the signature does not verify.
        PolicyError: if it is for another job, agreement or accelerator, or lasts longer
            than agreed.
    """
    lease = signed.lease
    terms.orchestrator.verify(Label.LEASE, encode(lease), signed.signature)
    for name in ("job", "agreement", "accelerator"):
        if getattr(lease, name) != getattr(terms, name):
            raise PolicyError(f"the lease is for another {name}", code="foreign-lease")
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
