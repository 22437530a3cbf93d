"""Real TPM evidence that others published: the right verdict, for the right reason.

None of it can pass here: every set lacks something that we insist on, and each test says
which. What is genuine in it verifies, and changed bytes do not.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from sealift.attest.collateral import Collateral
from sealift.attest.reference import TpmReferences, TpmRoot
from sealift.attest.tpm.enrolment import make_challenge, verify_endorsement
from sealift.attest.tpm.evidence import (
    TpmQuote,
    TpmSignature,
    parse_quote,
    parse_signature,
    verify_signature,
    verify_values,
)
from sealift.attest.tpm.structures import (
    Public,
    parse_public,
    require_attestation_key,
    sized,
)
from sealift.crypto.certificate import certificates_from_pem
from sealift.crypto.hash import HashName
from sealift.crypto.vendorkeys import RsaKey, read_key
from sealift.errors import AuthenticationError, EvidenceError, MalformedError
from tests.sim.flips import flips
from tests.sim.vectors import vector

pytestmark = pytest.mark.vectors


def unsized(raw: bytes) -> bytes:
    """What stands behind a TPM2B's length."""
    assert len(raw) == 2 + int.from_bytes(raw[:2])
    return raw[2:]


def b64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4))


def trustee() -> tuple[RsaKey, TpmQuote, TpmSignature, dict[int, bytes]]:
    """What Trustee's verifier is tested with: the key is a bare SPKI."""
    document = json.loads(vector("tpm/trustee_tpm_evidence.json"))
    taken = document["tpm_quote"]
    values = {n: bytes.fromhex(text) for n, text in enumerate(taken["pcrs"])}
    return (
        read_key(b64(document["ak_public"])),
        parse_quote(b64(taken["message"])),
        parse_signature(b64(taken["signature"])),
        values,
    )


def windows() -> tuple[Public, TpmQuote, TpmSignature, dict[int, bytes]]:
    document = json.loads(vector("tpm/windows_gcp_shielded_vm.json"))
    public = parse_public(b64(document["AK"]["Public"]))
    pcrs = {each["Index"]: b64(each["Digest"]) for each in document["Log"]["PCRs"]}
    quote = document["Quote"]
    return (
        public,
        parse_quote(b64(quote["Quote"])),
        parse_signature(b64(quote["Signature"])),
        pcrs,
    )


def test_trustee_quote_is_genuine() -> None:
    key, quote, signature, values = trustee()
    signature.verify(key, quote.raw)
    verify_values(quote, {"sha256": values}, signature.scheme.hash)
    assert (signature.scheme.name, signature.scheme.hash) == ("rsassa", "sha256")
    assert [each.pcrs for each in quote.selections] == [tuple(range(24))]


def test_trustee_quote_changed_anywhere_is_refused() -> None:
    key, quote, signature, values = trustee()
    for place, raw in flips(quote.raw):
        with pytest.raises((AuthenticationError, MalformedError)):
            signature.verify(key, parse_quote(raw).raw)
        assert place >= 0
    for _, raw in flips(signature.parts[0], 64):
        with pytest.raises(AuthenticationError):
            replace(signature, parts=(raw,)).verify(key, quote.raw)
    for number, value in values.items():
        for _, raw in flips(value, 2):
            with pytest.raises(EvidenceError) as caught:
                verify_values(quote, {"sha256": {**values, number: raw}}, "sha256")
            assert caught.value.code == "tpm-pcr-digest"


def test_trustee_key_shows_no_attributes() -> None:
    """Without a public area nobody knows whether the key signs quotes only."""
    document = json.loads(vector("tpm/trustee_tpm_evidence.json"))
    with pytest.raises(MalformedError, match="unknown kind of key"):
        parse_public(b64(document["ak_public"]))


def test_windows_key_is_restricted_but_signs_sha1() -> None:
    public, quote, signature, _ = windows()
    verify_signature(quote, signature, public)
    assert signature.scheme.hash == "sha1"
    with pytest.raises(EvidenceError) as caught:
        require_attestation_key(public)
    assert caught.value.code == "tpm-weak-hash"


def test_windows_registers_are_the_quoted_ones() -> None:
    _, quote, signature, values = windows()
    (selection,) = quote.selections
    verify_values(quote, {selection.bank: values}, signature.scheme.hash)
    for number in values:
        other = {**values, number: bytes(19) + b"\1"}
        with pytest.raises(EvidenceError) as caught:
            verify_values(quote, {selection.bank: other}, "sha1")
        assert caught.value.code == "tpm-pcr-digest"


def test_windows_creation_certificate_is_no_quote() -> None:
    document = json.loads(vector("tpm/windows_gcp_shielded_vm.json"))
    with pytest.raises(MalformedError, match="type of attestation 0x801a"):
        parse_quote(b64(document["AK"]["CreateAttestation"]))


def test_dstack_sample_parses_and_is_unsigned() -> None:
    quote = parse_quote(vector("tpm/dstack_tpm_quote_sample.bin"))
    assert quote.extra == bytes.fromhex("12345678")
    assert [(each.bank, each.pcrs) for each in quote.selections] == [
        ("sha256", (0, 1, 2))
    ]
    assert (quote.clock.reset_count, quote.clock.restart_count) == (16, 0)
    assert quote.clock.safe
    assert quote.pcr_digest.hex().startswith("d8de2be2e8a319cd")


@pytest.mark.parametrize("cut", [0, 3, 60, 116])
def test_dstack_sample_cut_or_longer_is_refused(cut: int) -> None:
    raw = vector("tpm/dstack_tpm_quote_sample.bin")
    for other in (raw[:cut], raw + b"\0"):
        with pytest.raises(MalformedError):
            parse_quote(other)


def test_keylime_attestation_key_has_its_name() -> None:
    public = parse_public(unsized(vector("tpm/keylime_ak.pub")))
    assert public.name == vector("tpm/keylime_ak.name")
    assert require_attestation_key(public).name == "rsassa"
    for _, raw in flips(public.raw):
        try:
            changed = parse_public(raw)
        except MalformedError:
            continue
        assert changed.name != public.name


def test_keylime_endorsement_key_signs_nothing_but_takes_credentials() -> None:
    public = parse_public(unsized(vector("tpm/keylime_ek.pub")))
    with pytest.raises(EvidenceError) as caught:
        require_attestation_key(public)
    assert caught.value.code == "tpm-key-attributes"
    credential, _ = make_challenge(public, vector("tpm/keylime_ak.name"))
    assert len(credential.seed) == 256
    assert credential.blob.startswith(sized(bytes(32))[:2])


def test_keylime_chain_is_none_of_an_endorsement_key() -> None:
    chain = certificates_from_pem(vector("tpm/keylime_iak_idevid_chain.pem"))
    root = TpmRoot(name="keylime", key=chain[-1].spki_digest, operator="hardware")
    references = TpmReferences(roots=(root,), endorsement_keys=(), pcrs={})
    with pytest.raises(EvidenceError) as caught:
        verify_endorsement(
            tuple(each.der for each in chain),
            references,
            collateral=Collateral(),
            at_s=chain[0].not_before_s,
            max_age_s=1,
        )
    assert caught.value.code == "tpm-no-endorsement"


def test_rust_keylime_quote_lacks_its_key() -> None:
    """It is a quote over SHA-1; without the key beside it nobody can say more."""
    text = vector("tpm/rust-keylime_test-quote.txt").decode()
    quote_text, signature_text, _ = text.removeprefix("r").split(":")
    quote = parse_quote(b64(quote_text))
    signature = parse_signature(b64(signature_text))
    names: list[HashName] = [each.bank for each in quote.selections]
    assert names == ["sha1"]
    assert signature.scheme.hash == "sha1"
    key = parse_public(unsized(vector("tpm/keylime_ak.pub")))
    with pytest.raises(EvidenceError) as caught:
        verify_signature(quote, signature, key)
    assert caught.value.code == "tpm-signature"
