"""The Azure attester against a stand-in: a software TPM that holds what Azure's holds.

A paravisor of ours answers to user data; the chip under it is made too. No Azure guest
was at hand: what only a real one can show (timing, the host's service) is not shown here.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sealift.attest.azure.attester import (
    HCL_REPORT,
    AzureAttester,
    AzureSources,
    MetadataService,
)
from sealift.attest.azure.evidence import AzureBody
from sealift.attest.azure.verifier import examine_azure
from sealift.attest.reference import AppraisalBasis, ReferenceValues, TpmReferences
from sealift.attest.runtimelog import CODE_BUNDLE, RuntimeEvent
from sealift.attest.tpm.evidence import parse_quote
from sealift.attest.tpm.keys import (
    remove_index,
    write_index,
)
from sealift.attest.tpm.verifier import REQUIRED_PCRS
from sealift.attest.verifier import Claims, require_passed
from sealift.errors import StaleError, UnavailableError, UsageError
from sealift.ids import Digest
from tests.sim import azure_made, snp_made
from tests.sim.paravisor import Paravisor, move_in, setting_up
from tests.sim.swtpm import SoftwareTpm, software_tpm

pytestmark = pytest.mark.swtpm

BUNDLE = Digest.of(b"code")


@pytest.fixture
def tpm() -> Iterator[SoftwareTpm]:
    with software_tpm() as running:
        yield running


@pytest.fixture
def paravisor(tpm: SoftwareTpm) -> Paravisor:
    return move_in(tpm)


def sources(
    tpm: SoftwareTpm, paravisor: Paravisor, folder: Path, **changes: Any
) -> AzureSources:
    usual = AzureSources(
        state=folder, tpm=tpm.name, event_log=None, host=paravisor, wait=lambda s: None
    )
    return replace(usual, **changes)


def examine(attester: AzureAttester, **changes: Any) -> Claims:
    evidence = attester.collect(azure_made.BOUND)
    values = AzureBody.parse(evidence.body).pcrs["sha256"]
    pcrs = {str(number): (values[str(number)],) for number in REQUIRED_PCRS}
    virtual = TpmReferences(roots=(), endorsement_keys=(), pcrs=pcrs)
    references: ReferenceValues = replace(
        snp_made.references(host_data=(b"\3" * 32,)), tpm=virtual, **changes
    )
    authority = snp_made.authority("Milan")
    return examine_azure(
        evidence,
        AppraisalBasis(
            bound=azure_made.BOUND,
            references=references,
            collateral=authority.collateral(),
            at_s=snp_made.AT_S,
        ),
        authority.roots,
    )


def test_collected_evidence_is_accepted(
    tpm: SoftwareTpm, paravisor: Paravisor, tmp_path: Path
) -> None:
    with AzureAttester(sources(tpm, paravisor, tmp_path)) as attester:
        attester.measure(RuntimeEvent(CODE_BUNDLE, BUNDLE.raw))
        claims = examine(attester, code_bundle=BUNDLE)
        require_passed(claims.checks)
        assert claims.code_bundle == BUNDLE
        examine(attester)
        assert paravisor.asked == 1, "the host is asked once a report"


def test_the_runtime_log_outlives_the_process_and_not_the_boot(
    tpm: SoftwareTpm, paravisor: Paravisor, tmp_path: Path
) -> None:
    event = RuntimeEvent(CODE_BUNDLE, BUNDLE.raw)
    with AzureAttester(sources(tpm, paravisor, tmp_path)) as attester:
        attester.measure(event)
    with AzureAttester(sources(tpm, paravisor, tmp_path)) as attester:
        assert examine(attester).events == (event,)
    tpm.reset()
    with AzureAttester(sources(tpm, paravisor, tmp_path)) as attester:
        claims = examine(attester)
        assert claims.events == ()
        # A power cut: the TPM does not vouch for its clock, nothing else is wrong.
        with pytest.raises(StaleError) as caught:
            require_passed(claims.checks)
        assert caught.value.code == "tpm-clock-unsafe"


def test_user_data_makes_the_hardwares_report_fresh(
    tpm: SoftwareTpm, paravisor: Paravisor, tmp_path: Path
) -> None:
    def wait(pause_s: float) -> None:
        paravisor.renew(attester.client)

    fresh = sources(tpm, paravisor, tmp_path, fresh_hardware=True, wait=wait)
    with AzureAttester(fresh) as attester:
        claims = examine(attester)
        require_passed(claims.checks)
        assert not any("only the quote is fresh" in note for note in claims.notes)
    # Afterwards the report names an old handshake, so it is reset.
    plain = replace(fresh, fresh_hardware=False)
    with AzureAttester(plain) as attester:
        require_passed(examine(attester).checks)


def test_a_paravisor_that_does_not_renew_its_report(
    tpm: SoftwareTpm, paravisor: Paravisor, tmp_path: Path
) -> None:
    stuck = sources(tpm, paravisor, tmp_path, fresh_hardware=True)
    with AzureAttester(stuck) as attester, pytest.raises(UnavailableError) as caught:
        attester.collect(azure_made.BOUND)
    assert caught.value.code == "azure-paravisor"


def test_on_tdx_the_host_quotes_the_report(
    tpm: SoftwareTpm, paravisor: Paravisor, tmp_path: Path
) -> None:
    with setting_up(tpm) as client:
        paravisor.kind = 4
        paravisor.write_report(client, bytes(64))
    with AzureAttester(sources(tpm, paravisor, tmp_path)) as attester:
        body = AzureBody.parse(attester.collect(azure_made.BOUND).body)
    assert body.td_quote.startswith(b"quote of ")
    assert body.certificates == ()


def test_other_machines_are_no_azure_guests(tpm: SoftwareTpm, tmp_path: Path) -> None:
    empty = AzureSources(state=tmp_path, tpm=tpm.name, event_log=None)
    with pytest.raises(UnavailableError) as caught:
        AzureAttester(empty)
    assert caught.value.code == "azure-paravisor"


def test_a_report_that_names_another_key(
    tpm: SoftwareTpm, paravisor: Paravisor, tmp_path: Path
) -> None:
    numbers = azure_made.jwk("other", "HCLAkPub")
    with setting_up(tpm) as client:
        text = azure_made.claims_text(keys=[numbers])
        raw = azure_made.pack_hcl(bytes(1184), text).rstrip(b"\0")
        remove_index(client, HCL_REPORT)
        write_index(client, HCL_REPORT, raw)
    with pytest.raises(UnavailableError, match="another key"):
        AzureAttester(sources(tpm, paravisor, tmp_path))


def test_a_bound_value_has_2_to_64_bytes(
    tpm: SoftwareTpm, paravisor: Paravisor, tmp_path: Path
) -> None:
    opened = AzureAttester(sources(tpm, paravisor, tmp_path))
    with opened as attester:
        for bound in (b"ab", bytes(range(64))):
            body = AzureBody.parse(attester.collect(bound).body)
            assert parse_quote(body.quote).extra == bound
        for bound in (b"a", bytes(65)):
            with pytest.raises(UsageError):
                attester.collect(bound)


@pytest.mark.parametrize("register", [16, 23])
def test_a_register_that_software_resets_carries_no_log(
    register: int, tmp_path: Path
) -> None:
    with pytest.raises(UsageError):
        AzureSources(state=tmp_path, register=register, pcrs=tuple(range(24)))


class Service(BaseHTTPRequestHandler):
    """The host's service, as published: paths, header, names in JSON."""

    answer: Any = None
    seen: Any = None

    def do_GET(self) -> None:
        assert self.path == "/metadata/THIM/amd/certification"
        assert self.headers["Metadata"] == "true"
        self._reply()

    def do_POST(self) -> None:
        assert self.path == "/acc/tdquote"
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).seen = json.loads(raw)
        self._reply()

    def _reply(self) -> None:
        self.send_response(200 if self.answer is not None else 404)
        self.end_headers()
        if self.answer is not None:
            self.wfile.write(json.dumps(self.answer).encode())

    def log_request(self, *args: Any) -> None:
        """Not on the tests' screen."""


@pytest.fixture
def service() -> Iterator[MetadataService]:
    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield MetadataService(("127.0.0.1", server.server_port))
    finally:
        server.shutdown()
        server.server_close()
        thread.join(300)
        Service.answer = None


class TestMetadataService:
    def test_certificates(self, service: MetadataService) -> None:
        authority = snp_made.authority("Milan")
        key = x509.load_der_x509_certificate(snp_made.vcek("Milan").certificate)
        chain = (authority.certificates[name] for name in ("ask", "ark"))
        pem = [each.public_bytes(Encoding.PEM).decode() for each in (key, *chain)]
        Service.answer = {"vcekCert": pem[0], "certificateChain": pem[1] + pem[2]}
        found = service.certificates()
        assert found[1:] == (authority.der("ask"), authority.der("ark"))

    def test_td_quote(self, service: MetadataService) -> None:
        Service.answer = {"quote": "cXVvdGU"}
        assert service.td_quote(b"\xff\xfe") == b"quote"
        assert Service.seen == {"report": "__4"}

    @pytest.mark.parametrize("answer", [None, {}, {"quote": 5}, {"quote": "x"}])
    def test_no_answer(self, service: MetadataService, answer: Any) -> None:
        Service.answer = answer
        with pytest.raises(UnavailableError) as caught:
            service.td_quote(b"")
        assert caught.value.code == "azure-metadata"

    def test_nobody_there(self) -> None:
        with pytest.raises(UnavailableError):
            MetadataService(("127.0.0.1", 1), timeout_s=1).certificates()
