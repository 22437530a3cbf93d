"""Format of Azure evidence: the paravisor's report, and a quote of its virtual TPM.

The body is canonical JSON (spec/evidence-azure.md). Structures are carried as the TPM
and the hardware wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift import codec
from sealift.attest.evidence import MAX_BODY_BYTES, Evidence
from sealift.attest.runtimelog import MAX_EVENTS, RuntimeEvent
from sealift.attest.tpm.evidence import parse_registers
from sealift.crypto.certificate import MAX_CHAIN
from sealift.crypto.hash import HashName
from sealift.errors import MalformedError

KIND: Final = "azure"
MEDIA_TYPE: Final = "application/vnd.sealift.azure-evidence+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureBody:
    """The whole body.

    Attributes:
        hcl_report: The paravisor's report, as the virtual TPM holds it.
        td_quote: Of the TDX report inside; empty on SNP.
        certificates: DER, of the SNP report's key; what is missing comes from collateral.
        quote: TPMS_ATTEST.
        signature: TPMT_SIGNATURE.
        pcrs: The quoted values by bank and number (decimal).
        event_log: The guest firmware's event log; empty if there is none.
        events: The runtime log.
    """

    hcl_report: bytes
    td_quote: bytes = b""
    certificates: tuple[bytes, ...] = ()
    quote: bytes
    signature: bytes
    pcrs: dict[str, dict[str, bytes]]
    event_log: bytes = b""
    events: tuple[RuntimeEvent, ...] = ()

    def __post_init__(self) -> None:
        if len(self.certificates) > MAX_CHAIN:
            raise MalformedError("too many certificates", field="certificates")
        if len(self.events) > MAX_EVENTS:
            raise MalformedError("too many runtime events", field="events")
        self.registers()

    def registers(self) -> dict[HashName, dict[int, bytes]]:
        """The quoted values by bank and number.

        Raises:
            MalformedError: for a bank or a number that no TPM has.
        """
        return parse_registers(self.pcrs)

    def to_evidence(self) -> Evidence:
        """Evidence with this body."""
        return Evidence(KIND, MEDIA_TYPE, codec.encode(self))


def parse_body(body: bytes) -> AzureBody:
    """Parse; trusts nothing.

    Raises:
        MalformedError: if it is not this format.
    """
    return codec.decode(AzureBody, body, max_bytes=MAX_BODY_BYTES)
