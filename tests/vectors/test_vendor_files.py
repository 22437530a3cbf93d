"""Vendors' own files at the command line: told by content, wrapped, judged."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from sealift import codec
from sealift.attest import Evidence, ReferenceValues
from sealift.attest.collateral import Collateral, pack_bundle
from sealift.attest.reference import (
    AppraisalBasis,
    ReferenceSet,
    sign_set,
)
from sealift.attest.snp.endorsement import parse_certificates
from sealift.attest.snp.evidence import SnpBody, parse_report
from sealift.attest.snp.verifier import examine_snp
from sealift.attest.tools.asreference import Trusted, to_references
from sealift.attest.tools.collateral import to_items
from sealift.attest.tools.vendorfiles import wrap
from sealift.attest.verifier import Claims
from sealift.cli.main import main
from sealift.crypto.sign import SigningKey
from sealift.errors import EvidenceError, MalformedError, PolicyError, UsageError
from tests.sim import azure_vectors, nvidia_vectors, snp_vectors, tdx_vectors
from tests.sim.vectors import vector, vectors_folder
from tests.unit.attest.test_written import forms, scale, table, version_1

pytestmark = pytest.mark.vectors
JUNE, JULY = "2025-06-01", "2026-07-01"


def verify(
    tmp_path: Path,
    name: str,
    values: ReferenceValues,
    *words: str,
    collateral: Collateral | None = None,
) -> int:
    made = ReferenceSet(name="host", number=1, made_at_s=0, values=values)
    references, bundle = tmp_path / "references", tmp_path / "bundle"
    references.write_bytes(codec.encode(sign_set(made, SigningKey.generate())))
    bundle.write_bytes(pack_bundle(collateral or Collateral()))
    return main([
        "attest", "verify", str(vectors_folder() / name), "--unbound",
        "--references", str(references), "--collateral", str(bundle), *words,
    ])  # fmt: skip


def test_a_bare_tdx_quote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = tdx_vectors.references_of(tdx_vectors.td_report(vector(tdx_vectors.V4)))
    bundle = tdx_vectors.collateral_of(tdx_vectors.V4)
    words = ("--at", "2025-06-19T11:20:00Z")
    assert verify(tmp_path, tdx_vectors.V4, values, *words, collateral=bundle) == 0
    shown = capsys.readouterr()
    assert "bare quote, without logs; it is read as tdx" in shown.err
    assert "ok  MRTD" in shown.out


def test_a_bare_snp_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = snp_vectors.VCEK
    values = snp_vectors.references_of(snp_vectors.report_of(chosen))
    folder = vectors_folder()
    chain = ("--certificates", str(folder / chosen.key),
             "--certificates", str(folder / chosen.chain))  # fmt: skip
    assert verify(tmp_path, chosen.report, values, "--at", JUNE, *chain) == 0
    assert "it is read as snp evidence" in capsys.readouterr().err
    assert verify(tmp_path, chosen.report, values, "--at", JUNE) == 5
    assert "[snp-key-missing]" in capsys.readouterr().err


def test_a_report_of_nvtrust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Genuine; a GPU alone proves no level, which the verdict says."""
    name = nvidia_vectors.TRIPLE
    chain = vectors_folder() / f"nvidia/{nvidia_vectors.PAIRS[name]}.txt"
    words = ("--certificates", str(chain), "--at", JUNE)
    values = nvidia_vectors.references()
    bundle = nvidia_vectors.triple_collateral()
    file = f"nvidia/{name}.txt"
    assert verify(tmp_path, file, values, *words, collateral=bundle) == 5
    shown = capsys.readouterr()
    assert "ok  golden measurements" in shown.out
    assert "NO " not in shown.out
    assert "[level-refused]" in shown.err
    assert verify(tmp_path, file, values, "--at", JUNE) == 2


@pytest.mark.parametrize("name", nvidia_vectors.LISTS)
def test_every_device_of_a_list(name: str) -> None:
    raw = vector(f"nvidia/{name}.json")
    for place, recorded in enumerate(nvidia_vectors.recorded_list(name)):
        wrapped = wrap(raw, device=place)
        assert wrapped.evidence == recorded.evidence
        assert f"device {place} of" in wrapped.form
    with pytest.raises(UsageError):
        wrap(raw, device=len(json.loads(raw)))


@pytest.mark.parametrize(
    "name", [azure_vectors.MILAN, azure_vectors.GENOA, azure_vectors.TDX]
)
def test_trustees_evidence_of_azure(name: str) -> None:
    body = azure_vectors.body_of(name)
    issuers = body.certificates[1:]
    assert wrap(vector(name), issuers).evidence == body.to_evidence()


@pytest.mark.parametrize("form", forms(b""))
def test_a_quote_in_any_writing_alone_and_in_a_member(form: str) -> None:
    """Bare, as Trustee sends it, as dstack answers, and in dstack's container."""
    quote = vector(tdx_vectors.V4)
    expected = tdx_vectors.evidence_of(quote)
    text = forms(quote)[form]
    boxed = forms(scale(0, quote))[form]
    for raw in (
        text,
        boxed,
        json.dumps({"quote": text, "cc_eventlog": None}),
        json.dumps({"quote": text, "event_log": "[]", "vm_config": "{}"}),
        json.dumps({"attestation": boxed}),
    ):
        assert wrap(raw.encode()).evidence == expected
    assert wrap(scale(0, quote)).evidence == expected
    assert wrap(version_1("tdx", quote=quote, event_log=[])).evidence == expected


def test_a_report_in_dstacks_container_keeps_its_chain() -> None:
    chosen = snp_vectors.VCEK
    report, leaf = vector(chosen.report), _leaf(chosen)
    for raw in (
        scale(3, report, leaf),
        version_1("sev-snp", report=report, cert_chain=[leaf], mr_config=""),
    ):
        assert wrap(raw).evidence == wrap(report, [leaf]).evidence


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def test_what_nvidias_tools_of_2026_print() -> None:
    """nvattest of both formats, a request to NRAS, Trustee's lists: the same device."""
    entries = json.loads(vector("nvidia/ppcie_gpu_evidence.json"))
    recorded = nvidia_vectors.recorded_list("ppcie_gpu_evidence")[3]
    sent = [{k: each[k] for k in ("evidence", "certificate")} for each in entries]
    web = {k: v.replace("+", "-").replace("/", "_") for k, v in sent[3].items()}
    message = {
        "__cmwc_t": "tag:nvidia.com,2026:evidence-item/v1",
        "evidence": [
            "application/vnd.nvidia.spdm-measurement-transcript",
            web["evidence"],
        ],
        "certificate": ["application/vnd.nvidia.pem-cert-chain", web["certificate"]],
    }
    renamed = {
        "evidence_b64": sent[3]["evidence"],
        "cert_chain_b64": sent[3]["certificate"],
    }
    for plain in (
        {"result_code": 0, "result_message": "Ok", "evidences": entries},
        {"nonce": "00", "arch": "HOPPER", "evidence_list": sent},
        {"device_evidence_list": sent},
        {"platform": "gpu", "evidence": {"evidences": entries}},
        [*sent[:3], {**sent[3], "certificate": recorded.pem.decode()}],
        [*sent[:3], renamed],
    ):
        assert wrap(json.dumps(plain).encode(), device=3).evidence == recorded.evidence
    collection = {"__cmwc_t": "tag", "nonce": ["application/octet-stream", "AA"]}
    for plain in ({**collection, "gpu_0": message}, sent[3], {"nvgpu": sent[3]}):
        assert wrap(json.dumps(plain).encode()).evidence == recorded.evidence


@pytest.mark.parametrize(
    "plain",
    [
        {"result_code": 7, "result_message": "no GPU", "evidences": None},
        {"result_code": 0, "result_message": "Ok", "evidences": []},
        {"evidence_list": [{"evidence": "AAAA"}]},
        {"evidence_list": [{"evidence": "AAAA", "certificate": "AAAA"}]},
        {"evidence_list": ["AAAA"]},
        {"evidence_list": {"evidence": 1, "certificate": 2}},
        {"__cmwc_t": "tag"},
        {"__cmwc_t": "tag", "gpu_0": {"evidence": ["a"]}},
        {"__cmwc_t": "tag", "gpu_0": {"evidence": ["a", 1], "certificate": ["a", 1]}},
        {"tdx": {"quote": "AAAA"}},
        {"tdx": {"quote": None}},
        {"attestation_report": "AAAA"},
    ],
)
def test_what_nothing_can_be_read_from(plain: Any) -> None:
    with pytest.raises((MalformedError, UsageError)):
        wrap(json.dumps(plain).encode())


def test_deep_answers_are_refused() -> None:
    plain: Any = {"quote": b64(vector(tdx_vectors.V4))}
    for _ in range(900):
        plain = {"evidence": plain}
    with pytest.raises(MalformedError):
        wrap(json.dumps(plain).encode())


def test_a_quote_in_answers_of_other_tools() -> None:
    """Intel Trust Authority, attestation-rs, Google: the quote, the log if it is one."""
    quote, log = vector(tdx_vectors.V4), vector("ccel/CCEL_data_ovmf")
    expected = tdx_vectors.evidence_of(quote)
    for plain in (
        {"tdx": {"quote": b64(quote), "runtime_data": "AA==", "event_log": "W10="}},
        {"policy_ids": [], "tdx": {"quote": b64(quote)}, "nvgpu": {"evidence": "AA=="}},
        {"platform": "tdx", "evidence": {"quote": b64(quote), "cc_eventlog": None}},
        {"platform": "dstack", "evidence": {"quote": quote.hex(), "event_log": "[]"}},
        {"intel_quote": quote.hex(), "event_log": [], "nvidia_payload": "{}"},
    ):
        assert wrap(json.dumps(plain).encode()).evidence == expected
    logged = tdx_vectors.evidence_of(quote, ccel=log)
    for plain in (
        {
            "platform": "gcp-tdx",
            "evidence": {"quote": b64(quote), "cc_eventlog": b64(log)},
        },
        {"tdQuote": b64(quote), "ccelData": b64(log)},
        {"td_quote": b64(quote), "ccel_data": b64(log), "ccel_acpi_table": ""},
    ):
        assert wrap(json.dumps(plain).encode()).evidence == logged


def test_a_report_in_answers_of_other_tools() -> None:
    chosen = snp_vectors.VCEK
    report, chain = vector(chosen.report), snp_vectors.certificates_of(chosen)
    expected = wrap(report, chain[:2]).evidence
    pem = "".join(
        f"-----BEGIN CERTIFICATE-----\n{b64(each)}\n-----END CERTIFICATE-----\n"
        for each in chain[:2]
    )
    entries = [{"cert_type": "VCEK", "data": list(chain[0])},
               {"cert_type": "ASK", "data": list(chain[1])}]  # fmt: skip
    for held in (
        {"vcek": b64(chain[0]), "ask": b64(chain[1]), "ark": None},
        [b64(each) for each in chain[:2]],
        entries,
        pem,
        b64(pem.encode()),
        b64(table(*chain[:2])),
    ):
        plain = {"attestation_report": b64(report), "cert_chain": held}
        for each in (plain, {"platform": "snp", "evidence": plain}):
            assert wrap(json.dumps(each).encode()).evidence == expected
    plain = {"report": report.hex(), "auxblob": table(*chain[:2]).hex()}
    assert wrap(json.dumps({"snp": plain}).encode()).evidence == expected


def taken_apart(raw: bytes, *, older: bool, text: bool) -> dict[str, Any]:
    """A report's fields, as the library writes them that Trustee's attester uses."""

    def data(start: int, size: int) -> Any:
        found = raw[start : start + size]
        return found.hex() if text else list(found)

    def number(start: int, size: int) -> int:
        return int.from_bytes(raw[start : start + size], "little")

    def tcb(start: int) -> dict[str, int | None]:
        names = {"bootloader": 0, "tee": 1, "snp": 6, "microcode": 7}
        return {
            **({} if older else {"fmc": None}),
            **{name: raw[start + at] for name, at in names.items()},
        }

    def version(name: str, start: int) -> dict[str, Any]:
        parts = dict(zip(("build", "minor", "major"), raw[start:], strict=False))
        if older:
            return {f"{name}_{part}": value for part, value in parts.items()}
        return {name: parts}

    return {
        "version": number(0, 4), "guest_svn": number(4, 4), "policy": number(8, 8),
        "family_id": data(0x10, 16), "image_id": data(0x20, 16), "vmpl": number(0x30, 4),
        "sig_algo": number(0x34, 4), "current_tcb": tcb(0x38),
        "plat_info": number(0x40, 8),
        **({} if older else {"key_info": number(0x48, 4)}),
        "report_data": data(0x50, 64), "measurement": data(0x90, 48),
        "host_data": data(0xC0, 32), "id_key_digest": data(0xE0, 48),
        "author_key_digest": data(0x110, 48), "report_id": data(0x140, 32),
        "report_id_ma": data(0x160, 32), "reported_tcb": tcb(0x180),
        "cpuid_fam_id": raw[0x188] or None, "cpuid_mod_id": raw[0x189] or None,
        "cpuid_step": raw[0x18A] or None, "chip_id": data(0x1A0, 64),
        "committed_tcb": tcb(0x1E0), **version("current", 0x1E8),
        **version("committed", 0x1EC), "launch_tcb": tcb(0x1F0),
        "signature": {"r": data(0x2A0, 72), "s": data(0x2E8, 72)},
    }  # fmt: skip


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("text", [False, True])
def test_a_report_that_trustee_took_apart(older: bool, text: bool) -> None:
    """Field by field, of the library's earlier and later releases: the same bytes."""
    chosen = snp_vectors.VCEK if older else snp_vectors.VLEK
    report, chain = vector(chosen.report), snp_vectors.certificates_of(chosen)
    parts = taken_apart(report, older=older, text=text)
    entries = [{"cert_type": "VCEK", "data": list(each)} for each in chain]
    plain = {"attestation_report": parts, "cert_chain": entries}
    wrapped = wrap(json.dumps(plain).encode()).evidence
    assert wrapped == wrap(report, chain).evidence
    alone = json.dumps({"attestation_report": parts, "cert_chain": None}).encode()
    assert wrap(alone, chain).evidence == wrapped


@pytest.mark.parametrize(
    "name", ["policy", "measurement", "host_data", "report_data", "chip_id", "vmpl",
             "reported_tcb", "current", "signature", "key_info"]
)  # fmt: skip
def test_a_field_that_was_changed_or_is_missing(name: str) -> None:
    chosen = snp_vectors.VLEK
    report, chain = vector(chosen.report), snp_vectors.certificates_of(chosen)
    genuine = taken_apart(report, older=False, text=False)
    lost = {each: value for each, value in genuine.items() if each != name}
    changed = json.loads(json.dumps(genuine))
    if isinstance(changed[name], int):
        changed[name] ^= 1 << 1
    elif isinstance(changed[name], list):
        changed[name][3] ^= 1
    else:
        part = "r" if name == "signature" else "tee" if "tcb" in name else "minor"
        changed[name][part] = changed[name][part][::-1] if part == "r" else 77
    for parts in (changed, lost):
        raw = json.dumps({"attestation_report": parts}).encode()
        with pytest.raises((EvidenceError, MalformedError)):
            snp_vectors.examine(
                chosen, report=SnpBody.parse(wrap(raw, chain).evidence.body).report
            )


def test_dstacks_container_with_a_chain_in_pem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real guest's; AMD's root is the only certificate that it does not contain."""
    name = "snp/dstack_sev-snp-attestation.json"
    body = SnpBody.parse(wrap(vector(name)).evidence.body)
    assert len(body.certificates) == 2
    values = snp_vectors.references_of(parse_report(body.report))
    root = Collateral(
        as_of_s=nvidia_vectors.JUNE_2025,
        items={"snp/chain/Milan": vector("snp/gosev_milan.testcer")},
    )
    assert verify(tmp_path, name, values, "--at", JULY, collateral=root) == 0
    assert "dstack's container" in capsys.readouterr().err
    assert verify(tmp_path, name, values, "--at", JULY) == 5
    assert "chain-" in capsys.readouterr().err


def test_dstacks_container_is_whole_or_refused() -> None:
    """Its logs, which nobody reads here, begin behind the chain."""
    raw = bytes.fromhex(
        json.loads(vector("snp/dstack_sev-snp-attestation.json"))["attestation"]
    )
    whole = wrap(raw).evidence
    read = [n for n in range(0, len(raw), 53) if _reads(raw[:n])]
    assert min(read) > 1184 + 2325 + 1887
    assert all(wrap(raw[:n]).evidence == whole for n in read)


def _reads(raw: bytes) -> bool:
    try:
        wrap(raw)
    except MalformedError:
        return False
    return True


@pytest.mark.parametrize("place", [0, 1])
def test_dstacks_container_with_another_chain_is_refused(place: int) -> None:
    """A swapped, changed or missing certificate."""
    body = SnpBody.parse(
        wrap(vector("snp/dstack_sev-snp-attestation.json")).evidence.body
    )
    report = parse_report(body.report)
    others = snp_vectors.certificates_of(snp_vectors.VCEK)
    own = set(body.certificates)
    kept = body.certificates[place]
    changed = bytearray(kept)
    changed[len(changed) // 2] ^= 1
    (other,) = own - {kept}
    amd = parse_certificates(vector("snp/gosev_milan.testcer"))[1].der
    basis = AppraisalBasis(
        bound=None,
        references=snp_vectors.references_of(report),
        collateral=Collateral(items={"snp/chain/Milan": amd}),
        at_s=nvidia_vectors.NOVEMBER_2026,
    )

    def judge(*chain: bytes) -> Claims:
        raw = scale(3, body.report, *chain)
        return examine_snp(wrap(raw).evidence, basis)

    assert {c.code for c in judge(kept, other).checks if c.code} == {"evidence-unbound"}
    for chain in (
        [kept],
        [kept, others[1 - place]],
        [bytes(changed), other],
        others[:2],
    ):
        with pytest.raises((EvidenceError, MalformedError)):
            judge(*chain)


def test_collateral_in_any_writing() -> None:
    raw = vector("tdx/gotdx_rootcrl.der")
    assert "tdx/root-crl" in to_items(raw)
    for text in forms(raw).values():
        assert to_items(text.encode()) == to_items(raw)
    rim, stem = vector("nvidia/trustee_vbios_rim.b64"), "NV_GPU_VBIOS_1"
    (found,) = to_items(rim, stem).values()
    assert b"<SoftwareIdentity" in found[:1000]


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[1]", b"\0" * 100, b"hello", b"[" * 99_999, b'{"quote": 1}',
            b'{"report": "", "quote": {}}', b"ff", bytes(1184), b"\4\0"]
)  # fmt: skip
def test_what_is_none_of_them(raw: bytes) -> None:
    with pytest.raises(MalformedError):
        wrap(raw)


def _leaf(chosen: snp_vectors.SnpVector) -> bytes:
    return parse_certificates(vector(chosen.key))[0].der


# --------------------------------------- evidence of others becomes reference values


def test_a_real_quote_becomes_a_reference() -> None:
    evidence = wrap(vector(tdx_vectors.V4)).evidence
    trusted = Trusted(
        at_s=tdx_vectors.PHALA_AT_S,
        collateral=tdx_vectors.collateral_of(tdx_vectors.V4),
    )
    report = tdx_vectors.td_report(vector(tdx_vectors.V4))
    values = to_references(evidence, trusted)
    assert values == tdx_vectors.references_of(report)
    assert not [c for c in tdx_vectors.examine(references=values).checks if c.code]


def test_a_platform_that_is_out_of_date_becomes_none() -> None:
    trusted = Trusted(
        at_s=tdx_vectors.OUTDATED_AT_S,
        collateral=tdx_vectors.collateral_of(tdx_vectors.OUTDATED),
    )
    with pytest.raises(PolicyError) as caught:
        to_references(wrap(vector(tdx_vectors.OUTDATED)).evidence, trusted)
    assert caught.value.code == "tcb-status"


@pytest.mark.parametrize("chosen", [snp_vectors.VCEK, snp_vectors.VLEK])
def test_a_real_report_becomes_a_reference(chosen: snp_vectors.SnpVector) -> None:
    evidence = _snp(chosen)
    values = to_references(evidence, Trusted(at_s=snp_vectors.AT_S, revocation=False))
    assert values.snp is not None
    assert set(values.snp.min_tcb) == {"Milan"}
    claims = snp_vectors.examine(chosen, references=values)
    assert not [each for each in claims.checks if each.code]


def test_a_debugged_guest_becomes_none() -> None:
    with pytest.raises(PolicyError) as caught:
        to_references(
            _snp(snp_vectors.DEBUGGED), Trusted(at_s=snp_vectors.AT_S, revocation=False)
        )
    assert caught.value.code == "snp-debug"


def _snp(chosen: snp_vectors.SnpVector) -> Evidence:
    chain = snp_vectors.certificates_of(chosen)
    return wrap(vector(chosen.report), chain).evidence


def test_a_real_gpu_becomes_a_reference() -> None:
    trusted = Trusted(
        at_s=nvidia_vectors.JUNE_2025,
        collateral=nvidia_vectors.triple_collateral(),
        revocation=False,
    )
    found = nvidia_vectors.recorded(nvidia_vectors.TRIPLE)
    values = to_references(found.evidence, trusted)
    assert values.nvidia is not None
    assert (values.nvidia.drivers, values.nvidia.modes) == (("545.00",), ("unstated",))
