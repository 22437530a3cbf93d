"""Collects composite evidence: every device first, then the lead over all of them."""

from __future__ import annotations

from collections.abc import Sequence

from sealift.attest.attester import Attester, measuring
from sealift.attest.composite.evidence import (
    MEDIA_TYPE,
    CompositeBody,
    device_bound,
    lead_bound,
)
from sealift.attest.evidence import Evidence, require_bound
from sealift.attest.runtimelog import RuntimeEvent
from sealift.errors import UsageError


class CompositeAttester:
    """One answer of a machine with its devices.

    Args:
        lead: Of the CPU's TEE or TPM.
        devices: GPUs and switches, in the order in which they were bound.
    """

    media_type = MEDIA_TYPE

    def __init__(self, lead: Attester, devices: Sequence[Attester]) -> None:
        if not devices:
            raise UsageError("a composite has devices; without, let the lead answer")
        self._lead = lead
        self._devices = tuple(devices)

    def measure(self, event: RuntimeEvent) -> None:
        """Extend the lead's register, where it has one.

        Raises:
            UnavailableError: as the lead's.
        """
        measuring(self._lead)(event)

    def collect(self, bound: bytes) -> Evidence:
        """Evidence over ``bound``.

        Raises:
            UsageError: if ``bound`` has not 2 to 64 bytes.
            UnavailableError: if the lead or a device cannot answer now.
        """
        require_bound(bound)
        devices = tuple(
            device.collect(device_bound(bound, place))
            for place, device in enumerate(self._devices)
        )
        lead = self._lead.collect(lead_bound(bound, devices))
        return CompositeBody(devices=devices, lead=lead).to_evidence()
