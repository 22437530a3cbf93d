"""Write relay.json: how a party proves its name to the relay, for fixed inputs.

The key is a real one, of a seed that is made of counters. Run it from the repository's
root; the output is the same every time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sealift.crypto.keys import SecretKey
from sealift.crypto.sign import SigningKey
from sealift.ids import Digest
from sealift.session.relay.envelope import (
    CHALLENGE_BYTES,
    EnvelopeKind,
    RelayEnvelope,
    prover,
)

TARGET = Path(__file__).with_name("relay.json")


def case(number: int, name: str) -> dict[str, str]:
    """One vector: inputs and the four envelopes, as hex."""
    seed = bytes(range(number, number + 32))
    challenge = bytes(range(128 + number, 128 + number + CHALLENGE_BYTES))
    key = SigningKey(SecretKey(seed))
    agreement = Digest.of(b"agreement %d" % number)
    signature = prover(key, agreement, name)(challenge)
    envelopes = {
        "register": RelayEnvelope(EnvelopeKind.REGISTER, name=name),
        "challenge": RelayEnvelope(EnvelopeKind.CHALLENGE, payload=challenge),
        "prove": RelayEnvelope(EnvelopeKind.PROVE, payload=signature),
        "registered": RelayEnvelope(EnvelopeKind.REGISTERED, name=name),
    }
    return {
        "name": name,
        "agreement": agreement.raw.hex(),
        "seed": seed.hex(),
        **{word: envelope.encode().hex() for word, envelope in envelopes.items()},
    }


def vectors() -> list[dict[str, Any]]:
    """All of them."""
    return [case(1, "holder-north"), case(2, "broker-north"), case(3, "tell-board")]


if __name__ == "__main__":
    TARGET.write_text(json.dumps(vectors(), indent=1) + "\n")
