"""Files of kinds that are not judged: each is called what it is, in one line, once."""

from __future__ import annotations

import base64
import json

import pytest

from sealift.attest.tools.vendorfiles import wrap
from sealift.cli.main import main
from sealift.errors import MalformedError
from tests.sim.vectors import vector, vectors_folder
from tests.unit.attest.test_written import forms, messagepack, scale

pytestmark = pytest.mark.vectors
NITRO = "other/dstack_nitro_attestation.bin"
CCA = "other/ccatoken_tf-rmm_token.cbor"
FILES = {
    NITRO: "AWS Nitro",
    CCA: "Arm CCA",
    "other/trustee_csv_evidence.json": "Hygon CSV",
    "tpm/trustee_tpm_evidence.json": "TPM's quote by Trustee",
    "tpm/windows_gcp_shielded_vm.json": "TPM's quote by go-attestation",
    "tpm/rust-keylime_test-quote.txt": "TPM's quote by Keylime",
    "tpm/dstack_tpm_quote_sample.bin": "TPM's quote",
    "nvidia/sample_hopperClaimsv3_detached_eat.json": "JWT",
    "snp/gosev_milan.testcer": "certificates",
    "nvidia/sdk_NV_GPU_DRIVER_GH100_550.144.03.xml": "reference manifest",
    "tdx/gotdx_sample_tcbInfo_response": "collateral",
    "tdx/phala_sgx_quote": "Intel SGX quote",
    "tdx/phala_tdx_quote_collateral.json": "collateral",
}
TOKEN = ".".join(
    base64.urlsafe_b64encode(each).decode().rstrip("=")
    for each in (b'{"alg":"ES384"}', b'{"iss":"https://a"}', bytes(range(96)))
)


def named(raw: bytes) -> str:
    with pytest.raises(MalformedError) as caught:
        wrap(raw)
    assert caught.value.code == "evidence-other-kind"
    assert caught.value.fix
    return caught.value.what


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind_is_named_and_advised_once(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attest", "verify", str(vectors_folder() / name), "--unbound"]) == 6
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert FILES[name] in line
    assert line.endswith("[evidence-other-kind]")
    assert line.count("sealift attest") <= 1


@pytest.mark.parametrize("form", forms(b""))
def test_bytes_of_another_kind_in_any_writing(form: str) -> None:
    for name in (NITRO, CCA):
        assert FILES[name] in named(forms(vector(name))[form].encode())


def test_another_kind_in_dstacks_container() -> None:
    document = vector(NITRO)
    for raw in (
        scale(2, document),
        json.dumps({"attestation": scale(2, document).hex()}).encode(),
        messagepack(
            {"platform": {"kind": "nitro-enclave", "data": {"nsm_quote": document}}}
        ),
        messagepack(
            {
                "platform": {
                    "kind": "aws-nitro-tpm",
                    "data": {"attestation_doc": document},
                }
            }
        ),
    ):
        assert "AWS Nitro" in named(raw)
    assert "dstack's container of another platform" in named(scale(4, b"abc"))


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (TOKEN, "JWT"),
        (f" {TOKEN}\n", "JWT"),
        (json.dumps(TOKEN), "JWT"),
        (json.dumps({"token": TOKEN}), "JWT"),
        (json.dumps({"attestation_token": TOKEN, "x": 1}), "JWT"),
        (json.dumps([["JWT", TOKEN], {"GPU-0": TOKEN}]), "JWT"),
        (json.dumps({"token": [210, 132]}), "Arm CCA"),
        (json.dumps({"svn": "1", "report_data": "AA=="}), "sample"),
        (json.dumps({"attestation_reports": []}), "Hygon DCU"),
        (json.dumps({"encr_measurement_key": "AA"}), "IBM Secure Execution"),
        (json.dumps({"version": 1, "devices": []}), "NVIDIA DPU"),
        (json.dumps({"result_code": 0, "claims": [{}]}), "result"),
        ('ak_pub: "\\000\\001\\000\\013"', "go-tpm-tools"),
        (json.dumps({"akPub": "AA", "quotes": []}), "go-tpm-tools"),
    ],
)
def test_text_of_another_kind(raw: str, kind: str) -> None:
    assert kind in named(raw.encode())


def test_documents_in_a_member() -> None:
    """Whatever the member is called; and a quote of an enclave in an answer."""
    nitro, enclave = vector(NITRO)[4:], vector("tdx/phala_sgx_quote")
    for text in (base64.b64encode(nitro).decode(), nitro.hex()):
        assert "AWS Nitro" in named(json.dumps({"document": text}).encode())
    assert "SGX" in named(json.dumps({"quote": enclave.hex()}).encode())
    sealed = TOKEN + ".QUJD.QUJD"
    assert "JWT" in named(sealed.encode())


def test_a_protobuf_of_go_tpm_tools() -> None:
    public = bytes.fromhex("0001000b00050072") + bytes(300)
    length = bytes([0x80 | len(public) & 0x7F, len(public) >> 7])
    assert "go-tpm-tools" in named(b"\x0a" + length + public)


@pytest.mark.parametrize(
    "raw",
    [b"hello", b"a.b.c", b"eyJhbGciOi.x", b'{"a": "b"}', b"[[[[]]]]", b"[" * 900 + b"]" * 900,
     b"\x0a\x05hello", b"\xd9\x01\x8e", b"null", b"1"],
)  # fmt: skip
def test_what_nobody_knows_stays_unknown(raw: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        wrap(raw)
    assert caught.value.code != "evidence-other-kind"


def test_a_cut_or_changed_file_of_a_kind_that_is_judged_is_no_other_kind() -> None:
    quote = vector("tdx/phala_tdx_quote")
    for raw in (quote[:-900], quote[:100], b"\4\0" + quote[3:]):
        with pytest.raises(MalformedError) as caught:
            wrap(raw)
        assert caught.value.code != "evidence-other-kind"
