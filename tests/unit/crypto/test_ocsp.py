"""OCSP answers: whose, about whom, of which time, and what they say."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.x509 import ocsp

from sealift.crypto.certificate import Certificate
from sealift.crypto.chain import Revocations, StatusAnswer
from sealift.errors import EvidenceError, MalformedError
from tests.sim.nvidia_device import AT, AT_S, Authority, issue
from tests.sim.ocsp_answers import GOOD, REVOKED, UNKNOWN, answer

SIGNS_ANSWERS = ("2.5.29.37", bytes.fromhex("300a06082b06010505070309"))
SIGNS_CODE = ("2.5.29.37", bytes.fromhex("300a06082b06010505070303"))
ROOT = issue("root")
DEVICE = issue("device", ROOT, ca=False)
DELEGATE = issue("delegate", ROOT, ca=False, extensions=(SIGNS_ANSWERS,))


def certificate(authority: Authority) -> Certificate:
    return Certificate(authority.der)


PATH = (certificate(DEVICE), certificate(ROOT))


def refusal(raw: bytes, *, at_s: int = AT_S) -> str:
    with pytest.raises(EvidenceError) as caught:
        Revocations(answers=(StatusAnswer(raw),)).require_unrevoked(PATH, at_s=at_s)
    return caught.value.code


@pytest.mark.parametrize("signer", [None, DELEGATE])
@pytest.mark.parametrize("name", [hashes.SHA1(), hashes.SHA256(), hashes.SHA384()])
def test_a_good_answer_is_taken(
    signer: Authority | None, name: hashes.HashAlgorithm
) -> None:
    """Control of everything below."""
    found = StatusAnswer(answer(DEVICE, ROOT, signer=signer, name=name))
    known = Revocations(answers=(found,))
    known.require_unrevoked(PATH, at_s=AT_S)
    assert known.know(*PATH)


@pytest.mark.parametrize("status", [REVOKED, UNKNOWN])
def test_whatever_is_not_good_is_refused(status: ocsp.OCSPCertStatus) -> None:
    assert refusal(answer(DEVICE, ROOT, status=status)) == "chain-revoked"


def test_one_bad_answer_beside_a_good_one_is_refused() -> None:
    both = tuple(
        StatusAnswer(answer(DEVICE, ROOT, status=each)) for each in (GOOD, REVOKED)
    )
    with pytest.raises(EvidenceError):
        Revocations(answers=both).require_unrevoked(PATH, at_s=AT_S)


def test_an_answer_of_somebody_else_is_refused() -> None:
    other = issue("root")  # of the same name
    assert refusal(answer(DEVICE, ROOT, signer=other)) == "ocsp-not-genuine"


@pytest.mark.parametrize(
    "delegate",
    [
        issue("delegate", ROOT, ca=False),
        issue("delegate", ROOT, ca=False, extensions=(SIGNS_CODE,)),
        issue("delegate", issue("root"), ca=False, extensions=(SIGNS_ANSWERS,)),
        DEVICE,
    ],
    ids=["no use", "other use", "other issuer", "the device itself"],
)
def test_whoever_may_not_answer_is_refused(delegate: Authority) -> None:
    assert refusal(answer(DEVICE, ROOT, signer=delegate)) == "ocsp-not-genuine"


def test_a_delegate_that_expired_is_refused() -> None:
    later = AT_S + 5000 * 86_400
    made = AT + dt.timedelta(days=4999)
    raw = answer(DEVICE, ROOT, signer=DELEGATE, made=made)
    assert refusal(raw, at_s=later) == "ocsp-not-genuine"


@pytest.mark.parametrize(
    ("made", "days"),
    [(AT - dt.timedelta(days=9), 7), (AT + dt.timedelta(days=1), 7), (AT, None)],
    ids=["old", "not yet", "without end"],
)
def test_an_answer_of_another_time_is_refused(
    made: dt.datetime, days: int | None
) -> None:
    raw = answer(DEVICE, ROOT, made=made, days=days)
    assert refusal(raw, at_s=AT_S + 1) == "ocsp-expired"


def test_an_answer_about_somebody_else_says_nothing() -> None:
    other = issue("device", ROOT, ca=False)
    for about, issuer in ((other, ROOT), (DEVICE, issue("root"))):
        known = Revocations(answers=(StatusAnswer(answer(about, issuer)),))
        assert not known.know(*PATH)


def test_every_changed_byte_is_refused_or_is_about_somebody_else() -> None:
    raw = answer(DEVICE, ROOT, signer=DELEGATE)
    for at in range(len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 1
        try:
            known = Revocations(answers=(StatusAnswer(bytes(changed)),))
            known.require_unrevoked(PATH, at_s=AT_S)
        except (EvidenceError, MalformedError):
            continue
        assert not known.know(*PATH)


@pytest.mark.parametrize("raw", [b"", b"a", bytes(40_000), b"\x30\x03\x0a\x01\x06"])
def test_what_is_no_answer_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        StatusAnswer(raw)
