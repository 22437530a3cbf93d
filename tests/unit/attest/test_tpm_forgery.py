"""Quotes that no TPM made, with every check taken away in turn (rules TPM2 to TPM5).

The keys are real: each attack runs against a software TPM, and passes exactly when the
check that refuses it is gone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from sealift import codec
from sealift.attest import Evidence
from sealift.attest.tpm import keys
from sealift.attest.tpm import verifier as tpm_verifier
from sealift.attest.tpm.client import PASSWORD
from sealift.attest.tpm.enrolment import (
    Enrolment,
    SignedEnrolment,
    check_answer,
    make_challenge,
    require_pair,
    sign_enrolment,
)
from sealift.attest.tpm.evidence import MEDIA_TYPE, TpmBody
from sealift.attest.tpm.registers import extend, quote
from sealift.attest.tpm.structures import Public, Scheme, parse_public, sized
from sealift.crypto.hash import digest
from sealift.errors import EvidenceError, UnavailableError
from tests.sim.mutants import passing
from tests.sim.swtpm import TestCommand, run_command
from tests.sim.tpmhost import (
    BOUND,
    TpmHost,
    changed,
    examine,
    failed,
    tpm_host,
)

pytestmark = pytest.mark.swtpm
UNRESTRICTED = keys.ATTESTATION_TEMPLATE.replace(
    bytes.fromhex("00050072"), bytes.fromhex("00040072")
)
# Duplicable: neither fixedTPM nor fixedParent.
MOVABLE = keys.ATTESTATION_TEMPLATE.replace(
    bytes.fromhex("00050072"), bytes.fromhex("00050060")
)


@pytest.fixture(scope="module")
def host() -> Iterator[TpmHost]:
    with tpm_host() as host:
        yield host


@contextmanager
def loaded(host: TpmHost, template: bytes) -> Iterator[keys.LoadedKey]:
    """A key of this TPM from another template."""
    client = host.attester.client
    parent = keys.create_primary(client, keys.OWNER, keys.STORAGE_TEMPLATE)
    key = keys.load_key(client, parent, keys.create_key(client, parent, template))
    keys.forget(client, parent)  # a TPM has three places
    try:
        yield key
    finally:
        keys.forget(client, key)


def sign_freely(host: TpmHost, key: keys.LoadedKey, message: bytes) -> bytes:
    """What TPM2_Sign does with a key that is not restricted."""
    ticket = struct.pack(">HIH", 0x8024, 0x40000007, 0)
    parameters = sized(digest("sha256", message)) + struct.pack(">H", 0x10) + ticket
    answer = run_command(
        host.attester.client,
        TestCommand.SIGN,
        (key.handle,),
        parameters,
        sessions=(PASSWORD,),
    )
    return answer.parameters


def enrol_anyway(host: TpmHost, key: keys.LoadedKey) -> SignedEnrolment:
    """A careless broker: the credential is activated, the key is not looked at."""
    attester, client = host.attester, host.attester.client
    ek = parse_public(attester.enrolment_request().endorsement_key)
    credential, secret = make_challenge(ek, key.public.name)
    kind, certificate = keys.find_endorsement(client)
    endorsement = keys.load_endorsement(client, kind, certificate)
    answer = keys.activate(client, key, endorsement, credential)
    check_answer(secret, answer)
    enrolment = Enrolment(
        attestation_key=key.public.name,
        endorsement_key=ek.spki_digest,
        root=host.tpm.maker.root.spki_digest,
        at_s=1,
    )
    return sign_enrolment(enrolment, host.owner)


def forged(host: TpmHost, key: keys.LoadedKey) -> Evidence:
    """A fresh quote of how the host was before it ran something bad."""
    clean = host.evidence(bytes(32))
    host.kernel.run("/tmp/bad", b"bad", allow=False)

    def forge(body: TpmBody) -> TpmBody:
        written = body.quote.replace(bytes(32), BOUND, 1)
        return replace(
            body,
            quote=written,
            signature=sign_freely(host, key, written),
            attestation_key=key.public.raw,
            enrolments=(enrol_anyway(host, key),),
        )

    return changed(clean, forge)


def any_scheme(public: Public) -> Scheme:
    assert public.scheme is not None
    return public.scheme


def test_unrestricted_key_hides_what_ran_only_if_nobody_looks_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tpm_host() as host, loaded(host, UNRESTRICTED) as key:
        evidence, references = forged(host, key), host.references()
        honest = failed(examine(host.evidence(), references))
    assert honest == {"ima-entry-unlisted"}
    with pytest.raises(EvidenceError) as caught:
        examine(evidence, references)
    assert caught.value.code == "tpm-key-attributes"
    monkeypatch.setattr(
        "sealift.attest.tpm.verifier.require_attestation_key", any_scheme
    )
    assert failed(examine(evidence, references)) == set()


def test_restricted_key_refuses_to_sign_a_forgery(host: TpmHost) -> None:
    """Control: the TPM itself keeps the real attestation key from it."""
    with (
        loaded(host, keys.ATTESTATION_TEMPLATE) as key,
        pytest.raises(UnavailableError) as caught,
    ):
        sign_freely(host, key, host.evidence().body)
    assert caught.value.code == "tpm-refused"


@pytest.mark.parametrize(
    "template", [UNRESTRICTED, MOVABLE], ids=["unrestricted", "movable"]
)
def test_broker_enrols_no_other_key(host: TpmHost, template: bytes) -> None:
    with loaded(host, template) as key:
        request = replace(
            host.attester.enrolment_request(), attestation_key=key.public.raw
        )
    with pytest.raises(EvidenceError) as caught:
        require_pair(request)
    assert caught.value.code == "tpm-key-attributes"


def test_broker_takes_no_other_key_for_the_endorsement_key(host: TpmHost) -> None:
    request = host.attester.enrolment_request()
    for other in (request.attestation_key, keys_of_other_host()):
        with pytest.raises(EvidenceError) as caught:
            require_pair(replace(request, endorsement_key=other))
        assert caught.value.code == "tpm-endorsement-key"
    with pytest.raises(EvidenceError):
        require_pair(replace(request, certificates=()))


def keys_of_other_host() -> bytes:
    with tpm_host(1) as other:
        return other.attester.enrolment_request().endorsement_key


def test_key_of_another_tpm_cannot_be_activated_here(host: TpmHost) -> None:
    """A name is not enough: the key must be loaded beside the endorsement key."""
    request = host.attester.enrolment_request()
    ek = parse_public(request.endorsement_key)
    credential, _ = make_challenge(ek, b"\0\x0b" + bytes(32))
    with pytest.raises(UnavailableError) as caught:
        host.attester.answer(credential)
    assert caught.value.code == "tpm-refused"


def test_guessed_answer_is_refused(host: TpmHost) -> None:
    ek = parse_public(host.attester.enrolment_request().endorsement_key)
    _, secret = make_challenge(ek, b"\0\x0b" + bytes(32))
    with pytest.raises(EvidenceError) as caught:
        check_answer(secret, bytes(32))
    assert caught.value.code == "tpm-not-activated"


def test_other_key_of_the_same_tpm_is_not_enrolled(host: TpmHost) -> None:
    """Enrolment names one key, not every key of the TPM."""
    with loaded(host, keys.ATTESTATION_TEMPLATE) as key:
        quoted = quote(host.attester.client, key, BOUND, "sha256", range(16))
    evidence = changed(
        host.evidence(),
        lambda body: replace(
            body,
            quote=quoted.quote,
            signature=quoted.signature,
            attestation_key=key.public.raw,
        ),
    )
    with pytest.raises(EvidenceError) as caught:
        examine(evidence, host.references())
    assert caught.value.code == "tpm-not-enrolled"


@pytest.mark.parametrize("mutant", [False, True])
def test_quote_signed_by_another_key_is_refused(
    host: TpmHost, monkeypatch: pytest.MonkeyPatch, mutant: bool
) -> None:
    with loaded(host, keys.ATTESTATION_TEMPLATE) as key:
        quoted = quote(host.attester.client, key, BOUND, "sha256", range(16))
    evidence = changed(
        host.evidence(),
        lambda body: replace(body, quote=quoted.quote, signature=quoted.signature),
    )
    if mutant:
        monkeypatch.setattr(
            "sealift.attest.tpm.verifier.verify_signature", lambda *_: None
        )
        assert failed(examine(evidence, host.references())) == set()
        return
    with pytest.raises(EvidenceError) as caught:
        examine(evidence, host.references())
    assert caught.value.code == "tpm-signature"


def test_certificate_of_anothers_chip_is_not_enrolled(host: TpmHost) -> None:
    with tpm_host(1, owner=host.owner) as other:
        shown = TpmBody.parse(other.evidence().body)
        references = replace(host.references(), tpm=other.references().tpm)
    evidence = changed(
        host.evidence(), lambda body: replace(body, certificates=shown.certificates)
    )
    with pytest.raises(EvidenceError) as caught:
        examine(evidence, references)
    assert caught.value.code == "tpm-not-enrolled"


def test_forged_evidence_is_what_it_says(host: TpmHost) -> None:
    """Control: evidence that is only taken apart and put together again passes."""
    again = changed(host.evidence(), lambda body: body)
    assert failed(examine(again, host.references())) == set()
    assert (again.kind, again.media_type) == (TpmBody.kind, MEDIA_TYPE)
    assert codec.encode(TpmBody.parse(again.body)) == again.body


def written_by_hand(clean: Evidence) -> Evidence:
    """A key in this process that claims every attribute, over a quote we wrote."""
    private = ec.generate_private_key(ec.SECP256R1())
    numbers = private.public_key().public_numbers()
    point = (part.to_bytes(32, "big") for part in (numbers.x, numbers.y))
    public = keys.ATTESTATION_TEMPLATE[:-4] + b"".join(map(sized, point))

    def forge(body: TpmBody) -> TpmBody:
        written = body.quote.replace(bytes(32), BOUND, 1)
        r, s = decode_dss_signature(private.sign(written, ec.ECDSA(SHA256())))
        parts = b"".join(sized(part.to_bytes(32, "big")) for part in (r, s))
        return replace(
            body,
            quote=written,
            signature=bytes.fromhex("0018 000b") + parts,
            attestation_key=public,
        )

    return changed(clean, forge)


def first_enrolment(
    enrolments: tuple[SignedEnrolment, ...], **_: object
) -> SignedEnrolment:
    return enrolments[0]


def test_key_in_software_passes_only_if_nobody_asks_who_enrolled_it(
    host: TpmHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attributes are only words until a TPM has activated a credential for them."""
    evidence = written_by_hand(host.evidence(bytes(32)))
    with pytest.raises(EvidenceError) as caught:
        examine(evidence, host.references())
    assert caught.value.code == "tpm-not-enrolled"
    monkeypatch.setattr("sealift.attest.tpm.enrolment.find_enrolment", first_enrolment)
    assert failed(examine(evidence, host.references())) == set()


@pytest.mark.parametrize(
    ("check", "code"),
    [
        ("check_bound", "evidence-unbound"),
        ("check_pinned", "tpm-other-host"),
        ("check_clock", "tpm-clock-unsafe"),
        ("check_runtime", "tpm-runtime-log"),
    ],
)
def test_each_comparison_is_the_one_that_refuses(
    monkeypatch: pytest.MonkeyPatch, check: str, code: str
) -> None:
    """One piece of evidence with every fault: each fault has a check of its own."""
    with tpm_host() as host:
        host.boot(orderly=False)
        extend(host.attester.client, 15, {"sha256": bytes(32)})
        evidence = host.evidence(bytes(32))
        references = host.references(endorsement_keys=())
    faults = failed(examine(evidence, references))
    assert faults == {
        "evidence-unbound",
        "tpm-other-host",
        "tpm-clock-unsafe",
        "tpm-runtime-log",
    }
    passing(tpm_verifier, check)(monkeypatch)
    assert failed(examine(evidence, references)) == faults - {code}
