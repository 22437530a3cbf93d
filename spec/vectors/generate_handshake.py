"""Write handshake.json: transcript, signed values and key schedule for fixed inputs.

Inputs are made of counters, not of real keys: the functions under test do not look into
them. Run it from the repository's root; the output is the same every time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sealift import codec
from sealift.attest.evidence import Evidence
from sealift.crypto.hash import sha256
from sealift.crypto.hpke import ANSWER_BYTES, OFFER_BYTES, PUBLIC_BYTES, HpkePublicKey
from sealift.crypto.keys import TOKEN, Label, SecretKey
from sealift.crypto.sign import PublicKey
from sealift.ids import Digest, Role
from sealift.session.transcript import (
    KeySchedule,
    Params,
    Proof,
    Side,
    bound_value,
    hash_params,
    hash_proofs,
    signed_value,
)

TARGET = Path(__file__).with_name("handshake.json")


def filler(name: str, length: int) -> bytes:
    """Bytes that look random and are not."""
    blocks = [
        sha256(name.encode(), bytes([number])) for number in range(length // 32 + 1)
    ]
    return b"".join(blocks)[:length]


def params(
    side: Side, role: Role, suites: tuple[int, ...], predecessor: bytes
) -> Params:
    """Parameters of one side."""
    exchange_bytes = OFFER_BYTES if side is Side.INITIATOR else ANSWER_BYTES
    shows_identity = role is Role.HOLDER
    return Params(
        version=1,
        suites=suites,
        role=role,
        name=f"{role}-1",
        identity=PublicKey(filler(f"identity {side}", 32)) if shows_identity else None,
        agreement=Digest.of(b"agreement"),
        instance=PublicKey(filler(f"instance {side}", 32)),
        challenge=filler(f"challenge {side}", 32),
        exchange=filler(f"exchange {side}", exchange_bytes),
        hpke=HpkePublicKey(filler(f"hpke {side}", PUBLIC_BYTES)),
        predecessor=predecessor,
    )


def proof(side: Side, role: Role) -> Proof:
    """Proof of one side; signatures are fillers."""
    attests, signs = role is Role.ACCELERATOR, role is Role.HOLDER
    evidence = Evidence("development", "application/vnd.example", b"evidence")
    return Proof(
        evidence=evidence if attests else None,
        identity=filler(f"identity signature {side}", 64) if signs else None,
        instance=filler(f"instance signature {side}", 64),
    )


def case(name: str, roles: dict[Side, Role], predecessor: bytes) -> dict[str, Any]:
    """One vector: inputs as canonical JSON text or hex, outputs as hex."""
    brought = {
        Side.INITIATOR: params(
            Side.INITIATOR, roles[Side.INITIATOR], (1, 2), predecessor
        ),
        Side.RESPONDER: params(
            Side.RESPONDER, roles[Side.RESPONDER], (1,), predecessor
        ),
    }
    shown = {side: proof(side, role) for side, role in roles.items()}
    th1 = hash_params(brought[Side.INITIATOR], brought[Side.RESPONDER])
    th2 = hash_proofs(th1, shown[Side.INITIATOR], shown[Side.RESPONDER])
    shared = filler("shared", 64)
    keys = KeySchedule(SecretKey(shared), th2)
    export = keys.export(Label.VISIT_FRAME, b"context")
    vector: dict[str, Any] = {
        "name": name,
        "shared": shared.hex(),
        "th1": th1.hex(),
        "th2": th2.hex(),
        "export_label": Label.VISIT_FRAME.value,
        "export_context": b"context".hex(),
        "export": export.reveal(TOKEN).hex(),
    }
    for side, role in roles.items():
        vector[side.value] = {
            "role": role.value,
            "params": codec.encode(brought[side]).decode(),
            "proof": codec.encode(shown[side]).decode(),
            "bound": bound_value(side, role, th1).hex(),
            "signed": signed_value(side, role, th1).hex(),
            "traffic_key": keys.traffic_key(side).reveal(TOKEN).hex(),
            "finished": keys.finished(side).hex(),
        }
    return vector


def vectors() -> list[dict[str, Any]]:
    """All cases."""
    joining = {Side.INITIATOR: Role.HOLDER, Side.RESPONDER: Role.ACCELERATOR}
    peers = {Side.INITIATOR: Role.ACCELERATOR, Side.RESPONDER: Role.ACCELERATOR}
    return [
        case("holder and accelerator", joining, b""),
        case("the same, renewed", joining, filler("predecessor", 32)),
        case("two of one role", peers, b""),
    ]


if __name__ == "__main__":
    TARGET.write_text(json.dumps(vectors(), indent=1) + "\n")
