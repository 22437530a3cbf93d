"""What binds the parts of a composite device to one challenge (RFC 9334 section 3.3).

Devices answer first, each a value derived from the bound value and its place; the lead
attester (the CPU's TEE or TPM) then binds the bound value and every device's evidence.
A device cannot be left out, swapped or taken from elsewhere without the lead's evidence
failing. Source: spec/evidence.md section Composite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sealift.attest.evidence import MAX_BODY_BYTES, Evidence
from sealift.codec import decode, encode
from sealift.crypto.hash import labelled
from sealift.crypto.kdf import Label
from sealift.errors import MalformedError

KIND: Final = "composite"
MEDIA_TYPE: Final = "application/vnd.sealift.composite-evidence+json"
MAX_DEVICES: Final = 32


def device_bound(bound: bytes, place: int) -> bytes:
    """What the device at ``place`` (from 0) must carry: 32 bytes."""
    return labelled(Label.DEVICE_EVIDENCE, bound, place.to_bytes(4, "big"))


def lead_bound(bound: bytes, devices: Sequence[Evidence]) -> bytes:
    """What the lead attester must carry; ``bound`` itself without devices."""
    if not devices:
        return bound
    parts = (each.digest.raw for each in devices)
    return labelled(Label.COMPOSITE_EVIDENCE, bound, *parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositeBody:
    """The whole body of composite evidence.

    Attributes:
        devices: In the order of their places; at least one.
        lead: Of the CPU's TEE or TPM, over all of them.
    """

    devices: tuple[Evidence, ...]
    lead: Evidence

    def __post_init__(self) -> None:
        if not 0 < len(self.devices) <= MAX_DEVICES:
            raise MalformedError(
                f"a composite has 1 to {MAX_DEVICES} devices", field="devices"
            )

    def to_evidence(self) -> Evidence:
        """Evidence with this body."""
        return Evidence(KIND, MEDIA_TYPE, encode(self))


def parse_body(body: bytes) -> CompositeBody:
    """Parse; trusts nothing.

    Raises:
        MalformedError: if it is not this format.
    """
    return decode(CompositeBody, body, max_bytes=MAX_BODY_BYTES)
