"""What crosses a link to the relay is parsed strictly."""

from __future__ import annotations

import pytest

from sealift.errors import MalformedError
from sealift.session.relay.envelope import FRAME_COST_BYTES, EnvelopeKind, RelayEnvelope


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        bytes(18),
        b"\x02" + bytes(18),
        b"\x01\x0b" + bytes(17),
        b"\x01\x03" + bytes(16) + b"\x05abc",
        b"\x01\x03" + bytes(16) + b"\x03A C",
        b"\x01\x03" + bytes(16) + b"\x02\xff\xfe",
    ],
)
def test_envelopes_are_parsed_strictly(frame: bytes) -> None:
    with pytest.raises(MalformedError):
        RelayEnvelope.parse(frame)


@pytest.mark.parametrize("payload", [b"", b"\0\0\0", b"\0\0\0\0", bytes(5)])
def test_credit_is_a_u32_above_zero(payload: bytes) -> None:
    with pytest.raises(MalformedError):
        _ = RelayEnvelope(EnvelopeKind.CREDIT, payload=payload).credit_bytes


def test_every_frame_counts() -> None:
    assert FRAME_COST_BYTES > 0  # else empty frames would fill the queue for nothing
