"""Evidence of real kinds through the KBS protocol, and forms that are not taken."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.attest import azure, tdx, tpm
from sealift.attest.attester import Attester
from sealift.attest.attesters.configfs import TsmReader
from sealift.attest.attesters.tdx import TdxAttester
from sealift.attest.evidence import Evidence
from sealift.attest.formats.tpmquote import parse_quote
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.attest.runtimelog import CODE_BUNDLE, RuntimeEvent
from sealift.codec import encode
from sealift.crypto.hash import digest
from sealift.crypto.keys import TOKEN
from sealift.errors import EvidenceError, MalformedError, SealiftError
from sealift.release.signed import VerifiedAgreement
from sealift.service.kbsclient import KbsClient
from sealift.service.kbsdevices import parse_devices
from sealift.service.kbsevidence import to_evidence, to_native, to_trustee
from tests.sim.azure_vectors import MILAN, TDX, body_of, examine
from tests.sim.intel_world import IntelWorld
from tests.sim.kbs_world import KbsGuest, KbsWorld, kbs_world, open_to_kbs, problem
from tests.sim.made_chain import AT_S
from tests.sim.owners import Consortium, make_consortium
from tests.sim.tpmhost import TpmHost, now_s, tpm_host
from tests.sim.tsm_folder import StandInTsmFolder
from tests.sim.vectors import vector


def rule_of(run: Any) -> str:
    with pytest.raises(SealiftError) as caught:
        run()
    return caught.value.code


@contextmanager
def served(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    level: Level,
    appraiser: Appraiser,
) -> Iterator[KbsWorld]:
    """A world at ``level``; the references of made hardware stand in for agreed ones."""
    consortium = open_to_kbs(make_consortium())
    agreement = replace(consortium.agreement, accept=(level,))
    consortium = replace(consortium, agreement=agreement)

    def ours(self: VerifiedAgreement) -> Appraiser:
        bundle = self.agreement.code.digest
        references = replace(appraiser.references, code_bundle=bundle)
        return replace(appraiser, references=references, accept=self.accept)

    monkeypatch.setattr(VerifiedAgreement, "appraiser", ours)
    with kbs_world(folder, consortium=consortium) as world:
        yield world


def code_event(consortium: Consortium) -> RuntimeEvent:
    return RuntimeEvent(CODE_BUNDLE, consortium.agreement.code.digest.raw)


# TDX


def tdx_appraiser(intel: IntelWorld) -> Appraiser:
    return Appraiser(
        accept=(Level.TEE,),
        references=intel.references(),
        collateral=intel.collateral(),
        clock=lambda: AT_S,
        verifiers={tdx.MEDIA_TYPE: intel.verifier()},
    )


def tdx_attester(intel: IntelWorld) -> TdxAttester:
    folder = StandInTsmFolder(lambda inblob, level: (intel.quote(inblob), b""))
    return TdxAttester(TsmReader(folder), intel.guest, Path("/absent"))


def attest_as(guest: KbsGuest, tee: str, attester: Attester) -> dict[str, Any]:
    """An attestation in Trustee's form of ``tee``."""
    challenge = guest.auth(tee=tee).json()
    attestation = guest.attestation(challenge)
    covered = {**attestation["runtime-data"], "additional-evidence": ""}
    bound = digest("sha384", encode(covered))
    evidence = attester.collect(bound if tee == "tdx" else bound[:32])
    attestation["tee-evidence"]["primary_evidence"] = to_trustee(evidence)
    return attestation


def test_tdx_guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Trustee's form, report data over SHA-384, our events beside the quote."""
    intel = IntelWorld()
    with served(tmp_path, monkeypatch, Level.TEE, tdx_appraiser(intel)) as world:
        guest, attester = world.client(), tdx_attester(intel)
        attester.measure(code_event(world.consortium))
        attestation = attest_as(guest, "tdx", attester)
        assert guest.send(attestation).status_code == 200
        key = world.consortium.keys["ada-train"].reveal(TOKEN)
        assert guest.open(guest.get()) == key
        assert (world.last_entry().level, world.last_entry().peer) == ("tee", "kbs-tdx")


def test_stock_tdx_guest_has_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intel = IntelWorld()
    with served(tmp_path, monkeypatch, Level.TEE, tdx_appraiser(intel)) as world:
        guest = world.client()
        answer = guest.send(attest_as(guest, "tdx", tdx_attester(intel)))
        assert problem(answer)[2] == "code-bundle-differs"


def test_tdx_quote_of_another_challenge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intel = IntelWorld()
    with served(tmp_path, monkeypatch, Level.TEE, tdx_appraiser(intel)) as world:
        guest, attester = world.client(), tdx_attester(intel)
        attester.measure(code_event(world.consortium))
        old = attest_as(guest, "tdx", attester)["tee-evidence"]
        attestation = attest_as(guest, "tdx", attester)
        attestation["tee-evidence"] = old
        assert problem(guest.send(attestation))[2] == "evidence-unbound"


def test_tdx_by_our_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    intel = IntelWorld()
    with served(tmp_path, monkeypatch, Level.TEE, tdx_appraiser(intel)) as world:
        attester = tdx_attester(intel)
        attester.measure(code_event(world.consortium))
        agreement = world.consortium.agreement
        client = KbsClient(url=world.url, attester=attester, agreement=agreement.digest)
        key = client.fetch_key(agreement.name, agreement.resource("ada-train"))
        expected = world.consortium.keys["ada-train"].reveal(TOKEN)
        assert key.reveal(TOKEN) == expected


# TPM


@pytest.fixture
def host() -> Iterator[TpmHost]:
    with tpm_host() as made:
        yield made


def tpm_appraiser(host: TpmHost) -> Appraiser:
    return Appraiser(
        accept=(Level.DEVELOPMENT,), references=host.references(), clock=now_s
    )


@pytest.mark.swtpm
def test_tpm_host(
    host: TpmHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real quote over all registers, in Trustee's form, and as ours."""
    host.reopen(pcrs=tuple(range(24)))
    appraiser = tpm_appraiser(host)
    with served(tmp_path, monkeypatch, Level.DEVELOPMENT, appraiser) as world:
        host.attester.measure(code_event(world.consortium))
        guest = world.client()
        attested = guest.send(attest_as(guest, "tpm", host.attester))
        assert attested.status_code == 200, attested.text
        key = world.consortium.keys["ada-train"].reveal(TOKEN)
        assert guest.open(guest.get()) == key
        client = KbsClient(
            url=world.url,
            attester=host.attester,
            agreement=world.consortium.agreement.digest,
        )
        assert client.fetch("joint-digits/train/ada-train") == key


@pytest.mark.swtpm
def test_tpm_form_keeps_everything(host: TpmHost) -> None:
    host.reopen(pcrs=tuple(range(24)))
    evidence = host.evidence()
    form = to_trustee(evidence)
    assert to_evidence("tpm", json.loads(json.dumps(form))) == evidence
    fewer = replace(tpm.parse_body(evidence.body), pcrs={"sha256": {"0": bytes(32)}})
    partial = Evidence(tpm.KIND, tpm.MEDIA_TYPE, encode(fewer))
    assert rule_of(lambda: to_trustee(partial)) == "kbs-evidence-form"


@pytest.mark.vectors
def test_bare_tpm_evidence_of_a_trustee_guest() -> None:
    """Its key is a bare public key: whose it is, and what it may sign, is not shown."""
    form = json.loads(vector("tpm/trustee_tpm_evidence.json"))
    assert rule_of(lambda: to_evidence("tpm", form)) == "kbs-evidence-form"


# forms


def test_native_form() -> None:
    evidence = tdx.TdxBody(quote=b"q").to_evidence()
    assert to_evidence("sealift", to_native(evidence)) == evidence


@pytest.mark.vectors
@pytest.mark.parametrize(
    ("quote", "log"),
    [
        ("tdx/phala_tdx_quote", None),
        ("tdx/gotdx_cos-113-tdx-quote.dat", "tdx/gotdx_ccel_data.dat"),
    ],
)
def test_published_tdx_evidence_in_trustees_form(quote: str, log: str | None) -> None:
    form = {"quote": base64.b64encode(vector(quote)).decode()}
    if log:
        form["cc_eventlog"] = base64.b64encode(vector(log)).decode()
    body = tdx.parse_body(to_evidence("tdx", form).body)
    assert (body.quote, body.ccel) == (vector(quote), vector(log) if log else None)
    assert to_trustee(body.to_evidence()) == form


@pytest.mark.vectors
def test_published_snp_report() -> None:
    report = vector("snp/trustee_test-report.bin")
    chip = vector("snp/trustee_test-vcek.der")
    form = {
        "attestation_report": base64.b64encode(report).decode(),
        "cert_chain": [{"cert_type": "VCEK", "data": list(chip)}],
    }
    assert to_evidence("snp", form).kind == "snp"


@pytest.mark.vectors
@pytest.mark.parametrize(
    ("tee", "name"), [("az-snp-vtpm", MILAN), ("az-tdx-vtpm", TDX)]
)
def test_published_azure_guests(tee: str, name: str) -> None:
    """Judged by our verifier, bound to what they were asked to bind."""
    evidence = to_evidence(tee, json.loads(vector(name)))
    body = azure.parse_body(evidence.body)
    original = body_of(name)
    assert (body.quote, body.signature) == (original.quote, original.signature)
    assert (body.hcl_report, body.pcrs) == (original.hcl_report, original.pcrs)
    assert body.td_quote == original.td_quote
    assert parse_quote(body.quote).extra == b"challenge"
    assert body.certificates == original.certificates[:1]


@pytest.mark.vectors
def test_azure_guest_is_judged_by_our_verifier() -> None:
    body = azure.parse_body(to_evidence("az-snp-vtpm", json.loads(vector(MILAN))).body)
    # Trustee's form has the chip's certificate; its issuers are collateral.
    whole = replace(body, certificates=body_of(MILAN).certificates)
    found = {each.code for each in examine(body=whole).checks if not each.passed}
    assert found == {each.code for each in examine().checks if not each.passed}


@pytest.mark.vectors
def test_published_gpu_evidence() -> None:
    listed = json.loads(vector("nvidia/hopper_evidence.json"))
    additional = json.dumps({"nvidia": {"device_evidence_list": listed}})
    found = parse_devices(additional)
    assert [each.kind for each in found] == ["nvidia"] * len(listed)


FORMS: dict[str, tuple[str, Any]] = {
    "no object": ("tdx", []),
    "no quote": ("tdx", {}),
    "quote is no text": ("tdx", {"quote": 7}),
    "quote is not base64": ("tdx", {"quote": "%"}),
    "events of another form": ("tdx", {"quote": "AA==", "sealift": {"events": [1]}}),
    "ours is no object": ("tdx", {"quote": "AA==", "sealift": 1}),
    "chain is no list": ("snp", {"attestation_report": "AA==", "cert_chain": 1}),
    "numbers that are no bytes": (
        "snp",
        {"attestation_report": "AA==", "cert_chain": [{"data": [256]}]},
    ),
    "no quote of a TPM": ("tpm", {"ak_public": ""}),
    "no registers": ("tpm", {"tpm_quote": {"pcrs": []}, "sealift": {}}),
    "no quote under Azure": ("az-snp-vtpm", {}),
    "a signature that is no hex": (
        "az-tdx-vtpm",
        {"tpm_quote": {"signature": "xx"}, "hcl_report": ""},
    ),
    "a report that is no base64": (
        "az-snp-vtpm",
        {"tpm_quote": {"signature": "00", "message": "", "pcrs": []}, "vcek": "+/"},
    ),
    "no media type": ("sealift", {"kind": "x", "media_type": "%", "body": ""}),
    "no body": ("sealift", {"kind": "x", "media_type": "application/x"}),
}


@pytest.mark.parametrize(("tee", "form"), FORMS.values(), ids=FORMS)
def test_form_that_is_none(tee: str, form: Any) -> None:
    with pytest.raises(MalformedError):
        to_evidence(tee, form)


NOT_READ: dict[str, tuple[str, Any]] = {
    "a report taken apart": ("snp", {"attestation_report": {"version": 2}}),
    **{tee: (tee, {}) for tee in ("sgx", "cca", "csv", "se", "sample", "amiga")},
}


@pytest.mark.parametrize(("tee", "form"), NOT_READ.values(), ids=NOT_READ)
def test_form_that_is_not_read(tee: str, form: Any) -> None:
    with pytest.raises(EvidenceError) as caught:
        to_evidence(tee, form)
    assert caught.value.code == "kbs-evidence-form"


@pytest.mark.parametrize(
    "additional",
    [
        "[]",
        "{",
        '{"nvidia": 1}',
        '{"nvidia": {"device_evidence_list": [1]}}',
        '{"nvidia": {"device_evidence_list": [{"evidence": "", "certificate": "x"}]}}',
        '{"nvidia": {}, "nvidia": {}}',
        '{"sample": {}}',
    ],
)
def test_devices_that_are_none(additional: str) -> None:
    with pytest.raises((MalformedError, EvidenceError)):
        parse_devices(additional)


def test_device_that_lies_refuses_the_whole(tmp_path: Path) -> None:
    device = {"evidence": base64.b64encode(b"x" * 40).decode(), "certificate": ""}
    additional = json.dumps({"nvidia": {"device_evidence_list": [device]}})
    with kbs_world(tmp_path) as world:
        guest = world.client()
        guest.additional = additional
        answer = guest.attest()
        assert problem(answer)[:2] == (401, "AttestationError")
        guest.additional = json.dumps({"nvidia": {"device_evidence_list": []}})
        assert guest.attest().status_code == 200
