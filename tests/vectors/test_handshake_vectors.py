"""The handshake's vectors, recomputed without our code, and regenerated with it."""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import json
from pathlib import Path
from typing import Any

import blake3
import pytest

SPEC = Path(__file__).parents[2] / "spec" / "vectors"
VECTORS: list[dict[str, Any]] = json.loads((SPEC / "handshake.json").read_text())
CASES = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])


def labelled(label: str, *parts: bytes) -> bytes:
    framed = [len(part).to_bytes(8, "big") + part for part in (label.encode(), *parts)]
    return hashlib.sha256(b"".join(framed)).digest()


def kdf(key: bytes, label: str, context: bytes) -> bytes:
    """HKDF-SHA-256 of RFC 5869 for one block of output."""
    info = bytes([len(label)]) + label.encode() + context
    pseudorandom = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(pseudorandom, info + b"\x01", "sha256")


@CASES
def test_transcript(vector: dict[str, Any]) -> None:
    sides = vector["initiator"], vector["responder"]
    params = [side["params"].encode() for side in sides]
    proofs = [side["proof"].encode() for side in sides]
    th1 = labelled("sealift v1 session transcript 1", *params)
    assert th1.hex() == vector["th1"]
    th2 = labelled("sealift v1 session transcript 2", th1, *proofs)
    assert th2.hex() == vector["th2"]


@CASES
@pytest.mark.parametrize("side", ["initiator", "responder"])
def test_bound_and_signed_values(vector: dict[str, Any], side: str) -> None:
    parts = side.encode(), vector[side]["role"].encode(), bytes.fromhex(vector["th1"])
    assert labelled("sealift evidence", *parts).hex() == vector[side]["bound"]
    signed = labelled("sealift v1 identity proof", *parts)
    assert signed.hex() == vector[side]["signed"]


@CASES
def test_key_schedule(vector: dict[str, Any]) -> None:
    th2 = bytes.fromhex(vector["th2"])
    master = kdf(bytes.fromhex(vector["shared"]), "sealift v1 session master", th2)
    directions = {"initiator": "responder", "responder": "initiator"}
    for side, other in directions.items():
        traffic = kdf(master, f"sealift v1 session {side} to {other}", th2)
        assert traffic.hex() == vector[side]["traffic_key"]
        finished_key = kdf(master, f"sealift v1 session finished {side}", th2)
        finished = blake3.blake3(th2, key=finished_key).hexdigest()
        assert finished == vector[side]["finished"]
    exporter = kdf(master, "sealift v1 session export", th2)
    context = bytes.fromhex(vector["export_context"])
    assert kdf(exporter, vector["export_label"], context).hex() == vector["export"]


def test_the_generator_makes_the_same() -> None:
    path = SPEC / "generate_handshake.py"
    spec = importlib.util.spec_from_file_location("generate_handshake", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.vectors() == VECTORS
