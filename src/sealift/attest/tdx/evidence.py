"""Format of TDX evidence: a quote, and the logs that explain its registers.

The body is canonical JSON (spec/evidence-tdx.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sealift import codec
from sealift.attest.evidence import MAX_BODY_BYTES, Evidence
from sealift.attest.runtimelog import MAX_EVENTS, RuntimeEvent
from sealift.errors import MalformedError

KIND: Final = "tdx"
MEDIA_TYPE: Final = "application/vnd.sealift.tdx-evidence+json"
RUNTIME_REGISTER: Final = 3
REGISTER_HASH: Final = "sha384"


@dataclass(frozen=True, slots=True, kw_only=True)
class TdxBody:
    """The whole body.

    Attributes:
        quote: As the platform made it.
        ccel: The firmware's event log (CCEL), or None if the guest has none.
        events: What the process measured into RTMR 3.
    """

    quote: bytes
    ccel: bytes | None = None
    events: tuple[RuntimeEvent, ...] = ()

    def __post_init__(self) -> None:
        if len(self.events) > MAX_EVENTS:
            raise MalformedError("too many runtime events", field="events")

    def to_evidence(self) -> Evidence:
        """Evidence with this body."""
        return Evidence(KIND, MEDIA_TYPE, codec.encode(self))


def parse_body(body: bytes) -> TdxBody:
    """Parse; trusts nothing.

    Raises:
        MalformedError: if it is not this format.
    """
    return codec.decode(TdxBody, body, max_bytes=MAX_BODY_BYTES)
