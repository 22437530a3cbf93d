"""Vendors' own files at the command line: told by content, wrapped, judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sealift import codec
from sealift.attest import Evidence, ReferenceValues
from sealift.attest.collateral import Collateral, pack_bundle
from sealift.attest.referenceset import (
    ReferenceSet,
    sign_set,
)
from sealift.attest.snp.endorsement import parse_certificates
from sealift.attest.tools.asreference import Trusted, to_references
from sealift.attest.tools.collateral import to_items
from sealift.attest.tools.vendorfiles import wrap
from sealift.cli.main import main
from sealift.crypto.sign import SigningKey
from sealift.errors import MalformedError, PolicyError, UsageError
from tests.sim import azure_vectors, nvidia_vectors, snp_vectors, tdx_vectors
from tests.sim.vectors import vector, vectors_folder
from tests.unit.attest.test_written import forms, scale, version_1

pytestmark = pytest.mark.vectors
JUNE = "2025-06-01"


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
