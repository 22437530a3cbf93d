"""Azure evidence of ours: each link of the chain, and what is refused by default."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sealift.attest.azure.evidence import MEDIA_TYPE, AzureBody, parse_claims, parse_hcl
from sealift.attest.azure.verifier import examine_azure
from sealift.attest.level import Level
from sealift.attest.reference import AppraisalBasis, ImaReferences
from sealift.attest.runtimelog import CODE_BUNDLE, MODULE, RuntimeEvent
from sealift.attest.verifier import require_passed
from sealift.errors import MalformedError, PolicyError, SealiftError
from sealift.ids import Digest
from tests.sim import azure_made as made
from tests.sim import snp_made
from tests.sim.azure_made import Guest
from tests.sim.kinds import loaded

BUNDLE = Digest.of(b"code")
EVENTS = (RuntimeEvent(CODE_BUNDLE, BUNDLE.raw), RuntimeEvent(MODULE, b"module"))


def refused(guest: Guest) -> str:
    with pytest.raises(SealiftError) as caught:
        require_passed(guest.examine().checks)
    return caught.value.code


def test_a_guest_that_shows_everything() -> None:
    claims = Guest(events=EVENTS, code_bundle=BUNDLE).examine()
    require_passed(claims.checks)
    assert (claims.level, claims.code_bundle) == (Level.TEE, BUNDLE)
    assert claims.events == EVENTS
    assert claims.measurements["pcr4"] == made.PCRS[4]
    assert claims.measurements["launch"] == b"\2" * 48
    assert (claims.trust.hardware, claims.trust.runtime_opaque) == (2, 2)
    notes = " ".join(claims.notes)
    assert "paravisor is trusted" in notes
    assert "virtual machine VM" in notes
    assert "console" not in notes


REFUSED: dict[str, tuple[Guest, str]] = {
    "bound value": (Guest(extra=b"\7" * 32), "evidence-unbound"),
    "shorter bound value": (Guest(extra=made.BOUND[:31]), "evidence-unbound"),
    "other user data": (
        Guest(claims=made.claims_text(**{"user-data": "01" * 64})),
        "evidence-unbound",
    ),
    "other claims": (Guest(over=bytes(32)), "azure-claims"),
    "tail of report data": (
        Guest(over=bytes(32), report={"report_data": b"\1" * 64}),
        "azure-claims",
    ),
    "report of the guest itself": (
        Guest(report={"vmpl": 2}, snp={"max_vmpl": 3}),
        "azure-vmpl",
    ),
    "other key signs": (Guest(signer="other"), "tpm-signature"),
    "encryption key signs": (Guest(signer="EK"), "tpm-signature"),
    "debug": (Guest(report={"policy": 0x3001F | 1 << 19}), "snp-debug"),
    "paravisor": (Guest(report={"measurement": b"\7" * 48}), "snp-measurement"),
    "boot": (Guest(values={**made.PCRS, 4: b"\7" * 32}), "tpm-pcr"),
    "boot that references leave open": (Guest(tpm={"pcrs": {}}), "tpm-pcr"),
    "loader's command line": (Guest(values={**made.PCRS, 12: b"\7" * 32}), "tpm-pcr"),
    "loader's extensions": (Guest(values={**made.PCRS, 13: b"\7" * 32}), "tpm-pcr"),
    "loader that was not there": (
        Guest(values={**made.PCRS, 12: bytes(32)}),
        "tpm-pcr",
    ),
    "clock": (Guest(safe=False), "tpm-clock-unsafe"),
    "events that were not measured": (
        Guest(events=EVENTS, measured=()),
        "tpm-runtime-log",
    ),
    "measured events that are not shown": (Guest(measured=EVENTS), "tpm-runtime-log"),
    "two bundles": (Guest(events=EVENTS[:1] * 2), "code-bundle-twice"),
    "no bundle": (Guest(code_bundle=BUNDLE), "code-bundle-differs"),
    "other virtual TPM": (
        Guest(tpm={"endorsement_keys": (Digest.of(b""),)}),
        "azure-endorsement-key",
    ),
    "IMA that nothing shows": (
        Guest(tpm={"ima": ImaReferences(allow={})}),
        "azure-ima",
    ),
    "register that software resets": (Guest(tpm={"register": 16}), "malformed"),
    "bank that is not quoted": (Guest(tpm={"bank": "sha384"}), "malformed"),
    "a TD quote beside it": (Guest(body={"td_quote": b"x"}), "malformed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    guest, code = REFUSED[name]
    assert refused(guest) == code


def test_user_data_of_this_handshake_makes_the_hardware_fresh_too() -> None:
    text = made.claims_text(**{"user-data": made.BOUND.ljust(64, b"\0").hex()})
    claims = Guest(claims=text).examine()
    require_passed(claims.checks)
    assert not any("only the quote is fresh" in note for note in claims.notes)
    plain = Guest().examine()
    assert any("only the quote is fresh" in note for note in plain.notes)


def test_a_pinned_virtual_tpm() -> None:
    guest = Guest(tpm={"endorsement_keys": (made.endorsement_digest(),)})
    require_passed(guest.examine().checks)
    guest.claims = made.claims_text(keys=[made.jwk("AK", "HCLAkPub")])
    assert refused(guest) == "azure-endorsement-key"


def test_weak_settings_are_said() -> None:
    notes = Guest(claims=made.claims_text(**{"vm-configuration": {}})).examine().notes
    assert "the serial console is enabled" in notes
    assert "secure boot is off" in notes


@pytest.mark.parametrize("missing", ["snp", "tpm"])
def test_both_kinds_of_references_are_needed(missing: str) -> None:
    guest = Guest()
    references = replace(guest.references(), **{missing: None})  # type: ignore[arg-type]
    with pytest.raises(PolicyError) as caught:
        examine_azure(
            guest.evidence_body().to_evidence(),
            AppraisalBasis(
                bound=made.BOUND,
                references=references,
                collateral=snp_made.authority("Milan").collateral(),
                at_s=snp_made.AT_S,
            ),
            snp_made.authority("Milan").roots,
        )
    assert caught.value.code == "references-missing"


def test_it_is_registered() -> None:
    assert loaded(MEDIA_TYPE) is examine_azure


def test_body_round_trip() -> None:
    body = Guest(events=EVENTS).evidence_body()
    assert AzureBody.parse(body.to_evidence().body) == body


class TestFormat:
    @pytest.mark.parametrize(
        ("at", "value"),
        [(0, 0), (4, 3), (8, 0), (1216, 0), (1224, 3), (1228, 2), (1232, 0), (2599, 1)],
    )
    def test_reports_that_do_not_parse(self, at: int, value: int) -> None:
        raw = bytearray(Guest().evidence_body().hcl_report)
        raw[at] = value
        with pytest.raises(MalformedError):
            parse_hcl(bytes(raw))

    def test_report_of_tdx(self) -> None:
        raw = made.pack_hcl(bytes(1184), b"{}", kind=4)
        assert parse_hcl(raw).kind == "tdx"

    def test_too_large(self) -> None:
        with pytest.raises(MalformedError):
            parse_hcl(bytes(20_000))

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"[]",
            b"{",
            b"\xff",
            b'{"keys":[],"keys":[]}',
            b'{"keys":[],"x":1.5}',
            made.claims_text(keys=[]),
            made.claims_text(keys={}),
            made.claims_text(keys=["x"]),
            made.claims_text(keys=[made.jwk("AK", "HCLAkPub")] * 2),
            made.claims_text(keys=[{**made.jwk("AK", "HCLAkPub"), "kty": "EC"}]),
            made.claims_text(keys=[{**made.jwk("AK", "HCLAkPub"), "n": "AQAB"}]),
            made.claims_text(keys=[{**made.jwk("AK", "HCLAkPub"), "n": "!"}]),
            made.claims_text(keys=[{**made.jwk("AK", "HCLAkPub"), "n": 5}]),
            made.claims_text(**{"user-data": ""}),
            made.claims_text(**{"user-data": "zz" * 64}),
            json.dumps({"keys": [made.jwk("AK", "HCLAkPub")]}).encode(),
        ],
        ids=lambda text: f"{len(text)} bytes",  # some hold a random key
    )
    def test_claims_that_do_not_parse(self, text: bytes) -> None:
        with pytest.raises(MalformedError):
            parse_claims(text)
