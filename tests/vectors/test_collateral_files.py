"""Bundles of vendors' real files; and their services, played by a local HTTP server.

No service of a vendor was ever asked by these tests: the stand-in answers with the
vectors' bytes in the form that the vendors document.
"""

from __future__ import annotations

import base64
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sealift import codec
from sealift.attest.collateral import DAY_S, parse_bundle
from sealift.attest.snp.endorsement import parse_certificates
from sealift.attest.tools.collateral import (
    Services,
    bundle,
    fetch,
    item_times,
    to_items,
    wanted,
)
from sealift.cli.main import main
from sealift.crypto.chain import RevocationList
from sealift.errors import MalformedError, UnavailableError, UsageError
from sealift.ids import Digest
from tests.sim import nvidia_vectors, snp_made, snp_vectors, tdx_vectors
from tests.sim.nvidia_device import SoftDevice
from tests.sim.vectors import vector, vectors_folder

pytestmark = pytest.mark.vectors
CACHE = f"{tdx_vectors.V4}_collateral.json"
RIM = "NV_GPU_DRIVER_GH100_545.00"


# ------------------------------------------------------------------ files that lie here


@pytest.mark.parametrize(
    ("name", "items"),
    [
        (CACHE, {"tdx/tcb-info", "tdx/qe-identity", "tdx/root-crl", "tdx/pck-crl"}),
        ("tdx/gotdx_sample_tcbInfo_response", {"tdx/tcb-info/50806f000000"}),
        ("tdx/gotdx_sample_qeIdentity_response", {"tdx/qe-identity"}),
        ("tdx/gotdx_rootcrl.der", {"tdx/root-crl", "sgx/root-crl"}),
        ("tdx/gotdx_pckcrl", {"tdx/pck-crl/platform", "tdx/pck-crl"}),
        ("snp/virtee_cert_chain_turin", {"snp/chain/Turin"}),
        ("snp/milan_ask_ark_asvk.pem", {"snp/chain/Milan"}),
        ("snp/genoa_ask_ark_asvk.pem", {"snp/chain/Genoa"}),
    ],
)  # fmt: skip
def test_files_are_told_by_their_content(name: str, items: set[str]) -> None:
    assert items <= to_items(vector(name)).keys()


def test_a_chips_key_is_named_by_its_chip() -> None:
    chip = snp_vectors.report_of(snp_vectors.VCEK).chip_id.hex()
    assert set(to_items(vector(snp_vectors.VCEK.key))) == {f"snp/vcek/{chip}"}
    (name,) = to_items(vector(snp_vectors.VLEK.key))
    assert name.startswith("snp/vlek/")


def test_a_manifest_is_named_by_its_file_or_its_answer() -> None:
    raw = nvidia_vectors.rim("nvtrust_Driver_RIM_test_no_gpu.swidtag")
    assert to_items(raw, RIM) == {f"nvidia/rim/{RIM}": raw}
    with pytest.raises(MalformedError) as caught:
        to_items(raw, "driver")
    assert caught.value.code == "collateral-unknown"
    assert to_items(rim_answer(raw)) == {f"nvidia/rim/{RIM}": raw}
    with pytest.raises(MalformedError, match="another digest"):
        to_items(rim_answer(raw, sha256="00" * 32))


@pytest.mark.parametrize("raw", [b"", b"{}", b"hello", b"[]", b"{" * 999, bytes(99)])
def test_what_is_none_of_them(raw: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        to_items(raw)
    assert caught.value.code == "collateral-unknown"


def test_a_bundle_is_as_new_as_its_newest_item() -> None:
    items = to_items(vector(CACHE))
    issued = [item_times(raw).issued_s or 0 for raw in items.values()]
    made = bundle(items, now_s=max(issued) + 5 * DAY_S)
    assert made.as_of_s == max(issued)
    later = bundle(items, now_s=max(issued) + 9, as_of_s=max(issued) + 9)
    assert later.as_of_s == max(issued) + 9
    for as_of_s, now_s in (
        (max(issued) + 10, max(issued) + 9),  # still to come
        (max(issued) - 1, max(issued) + 9),  # before an item was made
        (None, max(issued) - 1),  # the items are of the future
    ):
        with pytest.raises(UsageError) as caught:
            bundle(items, now_s=now_s, as_of_s=as_of_s)
        assert caught.value.code == "collateral-as-of"
    with pytest.raises(UsageError):
        bundle({"nvidia/rim/x": b"<xml/>"}, now_s=1)


def test_a_bundle_made_at_the_command_line_judges_a_real_quote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle.json"
    words = ["attest", "collateral", "make", str(vectors_folder() / CACHE)]
    assert main([*words, "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "tdx/tcb-info" in shown
    assert "2025-06-19" in shown
    assert "(expired)" in shown  # by now
    collateral = parse_bundle(out.read_bytes())
    claims = tdx_vectors.examine(collateral=collateral)
    assert not [each for each in claims.checks if each.code]
    assert main(["attest", "collateral", "show", str(out), "--at", "2025-06-20"]) == 0
    shown = capsys.readouterr().out
    assert "days ago" in shown
    assert "(expired)" not in shown
    assert main([*words, "-o", str(out)]) == 2
    named = [
        "--item",
        f"nvidia/rim/{RIM}={vectors_folder() / CACHE}",
        "--add",
        str(out),
    ]
    more = tmp_path / "more.json"
    assert main(["attest", "collateral", "make", *named, "-o", str(more)]) == 0
    assert len(parse_bundle(more.read_bytes()).items) == len(collateral.items) + 1


# --------------------------------------------------------------------------- services


@dataclass
class Answers:
    """What a vendor would answer, by path and query."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, tuple[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = ""


def rim_answer(raw: bytes, *, sha256: str | None = None) -> bytes:
    digest = sha256 or Digest.of(raw).raw.hex()
    return json.dumps(
        {"id": RIM, "rim": base64.b64encode(raw).decode(), "sha256": digest}
    ).encode()


@pytest.fixture
def answers() -> Iterator[Answers]:
    known = Answers()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.asked.append(self.path)
            body = known.bodies.get(self.path)
            self.send_response(404 if body is None else 200)
            if self.path in known.headers:
                self.send_header(*known.headers[self.path])
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        known.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield known
        server.shutdown()
        thread.join()


def intel(known: Answers) -> None:
    """Intel's answers about the vector's platform."""
    plain, items = json.loads(vector(CACHE)), to_items(vector(CACHE))
    base = "/tdx/certification/v4"
    tcb, identity = f"{base}/tcb?fmspc=b0c06f000000", f"{base}/qe/identity"
    crl = "/sgx/certification/v4/pckcrl?ca=platform&encoding=der"
    known.bodies = {
        tcb: items["tdx/tcb-info"],
        identity: items["tdx/qe-identity"],
        crl: items["tdx/pck-crl"],
        "/IntelSGXRootCA.der": items["tdx/root-crl"],
    }
    chains = (plain["tcb_info_issuer_chain"], plain["qe_identity_issuer_chain"])
    known.headers = {
        tcb: ("TCB-Info-Issuer-Chain", urllib.parse.quote(chains[0])),
        identity: ("SGX-Enclave-Identity-Issuer-Chain", urllib.parse.quote(chains[1])),
    }


def at(known: Answers) -> Services:
    url = known.url
    return Services(intel=url, intel_root=url, amd=url, nvidia=url)


def test_intels_service(answers: Answers) -> None:
    intel(answers)
    evidence = tdx_vectors.evidence_of(vector(tdx_vectors.V4))
    items = fetch(wanted(evidence, at(answers)))
    collateral = bundle(
        items, now_s=tdx_vectors.PHALA_AT_S, as_of_s=tdx_vectors.PHALA_AT_S
    )
    claims = tdx_vectors.examine(collateral=collateral)
    assert not [each for each in claims.checks if each.code]
    assert len(answers.asked) == 4


def test_amds_service(answers: Answers) -> None:
    """A made chip of ours: the vectors have no revocation list of AMD's."""
    authority, signer = snp_made.authority("Turin"), snp_made.vcek("Turin", fmc=1)
    versions = snp_made.tcb_bytes("Turin", fmc=1)
    report = snp_made.report("Turin", 3, reported_tcb=versions)
    evidence = snp_vectors.evidence_of(signer.sign(report), ())
    questions = wanted(evidence, at(answers))
    chip = snp_made.CHIP["Turin"][:8].hex()
    spl = "fmcSPL=01&blSPL=04&teeSPL=01&snpSPL=24&ucodeSPL=219"
    own = f"/vcek/v1/Turin/{chip}?{spl}"
    assert [each.url.removeprefix(answers.url) for each in questions] == [
        "/vcek/v1/Turin/cert_chain", "/vcek/v1/Turin/crl", own,
    ]  # fmt: skip
    chain = b"".join(
        b"-----BEGIN CERTIFICATE-----\n"
        + base64.encodebytes(authority.der(name))
        + b"-----END CERTIFICATE-----\n"
        for name in ("ask", "ark")
    )
    answers.bodies = {
        "/vcek/v1/Turin/cert_chain": chain,
        "/vcek/v1/Turin/crl": authority.crl(),
        own: signer.certificate,
    }
    items = fetch(questions)
    assert set(items) == {
        "snp/chain/Turin", "snp/crl-Turin",
        f"snp/vcek/{snp_made.CHIP['Turin'].hex()}",
    }  # fmt: skip
    assert RevocationList(items["snp/crl-Turin"])
    assert len(parse_certificates(items["snp/chain/Turin"])) == 2


def test_nvidias_service(answers: Answers) -> None:
    evidence = SoftDevice().body(bytes(32)).to_evidence()
    driver, vbios = wanted(evidence, at(answers))
    assert driver.url.endswith(f"/v1/rim/{RIM}")
    assert "NV_GPU_VBIOS_1010_0200_882" in vbios.url
    raw = nvidia_vectors.rim("nvtrust_Driver_RIM_test_no_gpu.swidtag")
    answers.bodies = {f"/v1/rim/{RIM}": rim_answer(raw)}
    assert fetch([driver]) == {f"nvidia/rim/{RIM}": raw}
    with pytest.raises(UnavailableError, match="status 404") as caught:
        fetch([vbios])
    assert caught.value.code == "collateral-unreachable"


def test_fetching_at_the_command_line(
    answers: Answers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    intel(answers)
    file, out = tmp_path / "evidence.json", tmp_path / "bundle.json"
    file.write_bytes(codec.encode(tdx_vectors.evidence_of(vector(tdx_vectors.V4))))
    words = ["attest", "collateral", "fetch", str(file), "-o", str(out)]
    places = ["--service", f"intel={answers.url}",
              "--service", f"intel-root={answers.url}"]  # fmt: skip
    assert main([*words, *places]) == 0
    assert "tdx/pck-crl/platform" in capsys.readouterr().out
    out.unlink()
    assert main([*words, "--service", "oracle=http://x"]) == 2
    assert main([*words, "--service", "intel=file:///etc/passwd"]) == 2
    dead = ["--service", "intel=http://127.0.0.1:9"]
    assert main([*words, *dead]) == 3
    assert "[collateral-unreachable]" in capsys.readouterr().err
    assert not out.exists()
