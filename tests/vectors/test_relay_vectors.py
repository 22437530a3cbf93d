"""The relay's vectors, recomputed without our code, and regenerated with it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SPEC = Path(__file__).parents[2] / "spec" / "vectors"
VECTORS: list[dict[str, str]] = json.loads((SPEC / "relay.json").read_text())
LABEL = b"sealift v1 relay name"


def envelope(kind: int, name: str, payload: bytes) -> bytes:
    head = bytes([1, kind]) + bytes(16) + bytes([len(name)])
    return head + name.encode() + payload


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_name_is_proven(vector: dict[str, str]) -> None:
    name = vector["name"]
    challenge = bytes.fromhex(vector["challenge"])[-32:]
    signed = bytes.fromhex(vector["agreement"]) + challenge + name.encode()
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(vector["seed"]))
    signature = key.sign(bytes([len(LABEL)]) + LABEL + signed)
    assert vector["register"] == envelope(1, name, b"").hex()
    assert vector["challenge"] == envelope(9, "", challenge).hex()
    assert vector["prove"] == envelope(10, "", signature).hex()
    assert vector["registered"] == envelope(2, name, b"").hex()


def test_the_generator_makes_the_same() -> None:
    path = SPEC / "generate_relay.py"
    spec = importlib.util.spec_from_file_location("generate_relay", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.vectors() == VECTORS
