"""The vectors of spec/release.md, checked without a line of sealift."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

FOLDER = Path(__file__).parents[2] / "spec" / "vectors"
VECTORS = json.loads((FOLDER / "release.json").read_text())
AGREEMENT = VECTORS["agreement"]
UNHEX = bytes.fromhex


def labelled(label, *parts):
    """H(label, ...) of the spec."""
    hashed = sha256()
    for part in (label.encode(), *parts):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()


def verify(public, label, message, signature):
    framed = bytes([len(label)]) + label.encode() + message
    Ed25519PublicKey.from_public_bytes(public).verify(signature, framed)


def key(text):
    body = text.removeprefix("ed25519:")
    return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))


@pytest.mark.parametrize("about", ["agreement", "group"])
def test_documents(about):
    raw = VECTORS[about]["document"].encode()
    plain = json.loads(raw)
    assert rfc8785.dumps(plain) == raw
    assert VECTORS[about]["digest"] == "sha256:" + sha256(raw).hexdigest()
    trains = about == "agreement"
    assert (plain["version"], plain["about"]) == (3, "train" if trains else "group")
    for name in ("model_owner", "output", "travel"):
        assert (plain[name] is not None) is trains
    assert bool(plain["resources"]) is trains


def test_agreement():
    raw = AGREEMENT["document"].encode()
    plain = json.loads(raw)
    files = rfc8785.dumps(plain["code"]["files"])
    bundle = labelled("sealift v1 code bundle", files).hex()
    assert plain["code"]["digest"] == AGREEMENT["bundle"] == f"sha256:{bundle}"
    signer, signature = UNHEX(AGREEMENT["signer"]), UNHEX(AGREEMENT["signature"])
    verify(signer, "sealift v1 agreement", raw, signature)
    with pytest.raises(InvalidSignature):
        verify(signer, "sealift v1 receipt", raw, signature)


def test_release():
    release = VECTORS["release"]
    info = release["info"].encode()
    signed = UNHEX(release["sealed"]) + sha256(info).digest()
    owner = UNHEX(AGREEMENT["signer"])
    verify(owner, "sealift v1 key release", signed, UNHEX(release["signature"]))
    assert json.loads(info)["agreement"] == AGREEMENT["digest"]


def test_log():
    entries = [entry.encode() for entry in VECTORS["log"]["entries"]]
    first, second, third = (sha256(b"\x00" + entry).digest() for entry in entries)
    left = sha256(b"\x01" + first + second).digest()
    signed = json.loads(VECTORS["log"]["head"])
    head = signed["head"]
    assert head["root"] == "sha256:" + sha256(b"\x01" + left + third).hexdigest()
    signature = base64.urlsafe_b64decode(signed["signature"] + "==")
    message = rfc8785.dumps(head)
    verify(key(head["log"]), "sealift v1 audit tree head", message, signature)
    info = sha256(VECTORS["release"]["info"].encode()).hexdigest()
    assert json.loads(entries[2])["info"] == f"sha256:{info}"


def test_account():
    raw = VECTORS["account"]["account"].encode()
    plain = json.loads(raw)
    assert rfc8785.dumps(plain) == raw
    verify(
        UNHEX(AGREEMENT["signer"]),
        "sealift v1 run account",
        raw,
        UNHEX(VECTORS["account"]["signature"]),
    )
    named = {name: sha256(text).hexdigest() for name, text in (
        ("agreement", rfc8785.dumps(AGREEMENT["digest"])), ("steps", b"2"))}  # fmt: skip
    assert plain["result"] == {name: f"sha256:{each}" for name, each in named.items()}
    assert plain["receipts"] == f"sha256:{sha256(b'[]').hexdigest()}"


def test_receipt_bound():
    instance = UNHEX(VECTORS["receipt"]["instance"])
    agreement = UNHEX(AGREEMENT["digest"].removeprefix("sha256:"))
    parts = (b"receipt", b"accelerator", instance, agreement)
    assert labelled("sealift evidence", *parts).hex() == VECTORS["receipt"]["bound"]


def test_the_file_is_what_the_generator_makes():
    done = subprocess.run(
        [sys.executable, str(FOLDER / "generate_release.py"), "--check"], check=False
    )
    assert done.returncode == 0
