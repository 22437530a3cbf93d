"""Invitations, proofs and words of a meeting, recomputed from spec/meeting.md alone."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest

from tests.vectors.test_relay_vectors import SPEC

VECTORS: dict[str, Any] = json.loads((SPEC / "meeting.json").read_text())


def labelled(label: str, *parts: bytes) -> bytes:
    framed = (len(p).to_bytes(8, "big") + p for p in (label.encode(), *parts))
    return hashlib.sha256(b"".join(framed)).digest()


def hkdf(secret: bytes, label: str) -> bytes:
    extracted = hmac.digest(bytes(32), secret, "sha256")
    info = bytes([len(label)]) + label.encode()
    return hmac.digest(extracted, info + b"\1", "sha256")


@pytest.mark.parametrize("case", VECTORS["invitations"], ids=lambda c: c["name"])
def test_an_invitation_and_its_proofs(case: dict[str, Any]) -> None:
    texts = [case["name"].encode(), *(each.encode() for each in case["addresses"])]
    meeting, secret = bytes.fromhex(case["meeting"]), bytes.fromhex(case["secret"])
    raw = b"\1" + meeting + case["expires_s"].to_bytes(8, "big")
    raw += bytes.fromhex(case["host"]) + secret
    raw += b"".join(bytes([len(each)]) + each for each in texts)
    whole = raw + hashlib.sha256(raw).digest()[:4]
    packed = base64.urlsafe_b64encode(whole).decode().rstrip("=")
    assert case["text"] == f"sealift-invitation-{packed}"
    assert case["agreement"] == labelled("sealift v1 meeting", meeting).hex()
    for side, whose in (("guest", "a guest"), ("host", "the host")):
        label = f"sealift v1 meeting proof of {whose}"
        card = case[f"{side}_card"].encode()
        named = json.loads(card)
        key = named["sign"].removeprefix("ed25519:")
        sign = base64.urlsafe_b64decode(key + "=" * (-len(key) % 4))
        th2, name = bytes.fromhex(case["th2"]), named["name"].encode()
        message = labelled(label, th2, name, sign, card)
        proof = hmac.digest(hkdf(secret, label), message, "sha256")
        assert proof.hex() == case[f"{side}_proof"]


@pytest.mark.parametrize("case", VECTORS["words"], ids=lambda c: c["words"][0])
def test_words(case: dict[str, Any]) -> None:
    terms = bytes.fromhex(case["terms"])
    salt = b"sealift v1 meeting words"
    raw = hashlib.scrypt(
        terms, salt=salt, n=1 << 17, r=8, p=1, maxmem=1 << 28, dklen=11
    )
    bits = f"{int.from_bytes(raw, 'big'):088b}"
    for place, word in enumerate(case["words"]):
        eleven = bits[11 * place : 11 * place + 11]
        first = VECTORS["beginnings"][int(eleven[:5], 2)]
        assert word == first + VECTORS["endings"][int(eleven[5:], 2)]


@pytest.mark.parametrize("case", VECTORS["declarations"])
def test_a_declaration_is_named_by_its_digest(case: dict[str, Any]) -> None:
    plain = json.loads(case["canonical"])
    canonical = json.dumps(plain, separators=(",", ":"), sort_keys=True).encode()
    assert canonical.decode() == case["canonical"]
    assert labelled("sealift v1 meeting", canonical).hex() == case["digest"]
    assert case["columns"] == sorted(each["name"] for each in plain["schema"]["fields"])
    schema = json.dumps(plain["schema"], separators=(",", ":"), sort_keys=True)
    assert case["longest_yes_bytes"] == 2 * len(schema) + 4096


def test_answers_leave_at_fixed_times() -> None:
    for spent, leaves in VECTORS["delays"]:
        fixed = [4.0 * 2**power for power in range(10)]
        assert leaves == min(each for each in fixed if each >= spent)
