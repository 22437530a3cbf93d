"""Whatever strangers send by the KBS protocol is read or refused, never a bug."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sealift.crypto.jwe import RecipientKey, RecipientKeyPair
from sealift.errors import MalformedError, RefusedError
from sealift.service.kbsdevices import parse_devices
from sealift.service.kbsevidence import to_evidence
from sealift.service.kbsforms import TEES, parse_attestation, parse_auth

KEY = dict(RecipientKeyPair().public.jwk)
MEMBERS = """
version tee extra-params supported-hash-algorithms runtime-data nonce tee-pubkey
tee-evidence primary_evidence additional_evidence quote cc_eventlog sealift events
attestation_report cert_chain data tpm_quote message signature pcrs ak_public kind
media_type body hcl_report vcek td_quote nvidia device_evidence_list evidence
certificate kty crv alg x y n e
"""
NAMES = st.sampled_from(MEMBERS.split())
PEM = "-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----"
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["0.4.0", "sample", "EC", "P-256", "RSA", "%", "\ud800", PEM]),
    st.sampled_from(sorted(TEES)),
    st.binary(max_size=40).map(lambda raw: base64.b64encode(raw).decode()),
    st.just(base64.b64encode(PEM.encode()).decode()),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=6)
    ),
    max_leaves=12,
)


def refused(run: Any, *arguments: Any) -> None:
    with suppress(RefusedError, MalformedError):
        run(*arguments)


@given(PLAIN, st.binary(max_size=60))
def test_messages(content: Any, raw: bytes) -> None:
    written = json.dumps(content).encode()
    for message in (written, raw):
        refused(parse_auth, message)
        refused(parse_attestation, message)


@given(PLAIN, PLAIN)
def test_attestation_with_a_good_key(primary: Any, additional: Any) -> None:
    message = {
        "runtime-data": {"nonce": "x", "tee-pubkey": KEY},
        "tee-evidence": {
            "primary_evidence": primary,
            "additional_evidence": additional,
        },
    }
    refused(parse_attestation, json.dumps(message).encode())


@given(PLAIN, st.sampled_from(sorted(TEES)))
def test_evidence(form: Any, tee: str) -> None:
    refused(to_evidence, tee, form)


@given(PLAIN)
def test_devices(content: Any) -> None:
    refused(parse_devices, json.dumps(content))
    listed = content if isinstance(content, list) else [content]
    nested = {"nvidia": {"device_evidence_list": listed}}
    refused(parse_devices, json.dumps(nested))


@given(PLAIN)
def test_keys(content: Any) -> None:
    refused(RecipientKey.from_jwk, content)
    if isinstance(content, dict):
        refused(RecipientKey.from_jwk, {**KEY, **content})


@given(TEXTS)
def test_text_of_devices(text: str) -> None:
    refused(parse_devices, text)
