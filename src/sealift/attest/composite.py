"""What binds the parts of a composite device to one challenge (RFC 9334 section 3.3).

Devices answer first, each a value derived from the bound value and its place; the lead
attester (the CPU's TEE or TPM) then binds the bound value and every device's evidence.
A device cannot be left out, swapped or taken from elsewhere without the lead's evidence
failing. Source: spec/evidence.md section Composite.
"""

from __future__ import annotations

from collections.abc import Sequence

from sealift.attest.evidence import Evidence
from sealift.crypto.hash import labelled
from sealift.crypto.kdf import Label


def device_bound(bound: bytes, place: int) -> bytes:
    """What the device at ``place`` (from 0) must carry: 32 bytes."""
    return labelled(Label.DEVICE_EVIDENCE, bound, place.to_bytes(4, "big"))


def lead_bound(bound: bytes, devices: Sequence[Evidence]) -> bytes:
    """What the lead attester must carry: 32 bytes; ``bound`` itself without devices."""
    if not devices:
        return bound
    parts = (each.digest.raw for each in devices)
    return labelled(Label.COMPOSITE_EVIDENCE, bound, *parts)
