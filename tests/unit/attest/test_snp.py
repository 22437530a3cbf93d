"""SNP evidence of ours: every layout, and what is refused by default (rule M7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.attest import Level, ReferenceValues
from sealift.attest.collateral import Collateral
from sealift.attest.reference import AppraisalBasis, SnpReferences
from sealift.attest.snp.evidence import MEDIA_TYPE, SnpBody
from sealift.attest.snp.verifier import examine_snp
from sealift.attest.verifier import Claims
from sealift.codec import encode
from sealift.errors import EvidenceError, MalformedError, PolicyError, RefusedError
from sealift.ids import Digest
from tests.sim import snp_made as made
from tests.sim.kinds import loaded
from tests.sim.snp_case import Case

PRODUCTS = ("Milan", "Genoa", "Turin")


def refused(case: Case) -> str:
    with pytest.raises((RefusedError, MalformedError)) as caught:
        case.appraise()
    return caught.value.code


@pytest.mark.parametrize("version", [2, 3, 4, 5])
@pytest.mark.parametrize("product", PRODUCTS)
def test_every_version_of_every_product_is_accepted(product: str, version: int) -> None:
    claims = Case(product, version).appraise()
    assert claims.level is Level.TEE
    assert claims.attester == f"snp-chip:{made.CHIP[product].hex()}"
    assert claims.measurements["launch"] == b"\2" * 48
    assert (claims.trust.hardware, claims.trust.runtime_opaque) == (2, 2)
    assert "any chip of the product may have answered" in claims.notes


def test_an_operators_key_is_accepted_where_it_is_named() -> None:
    case = Case(
        fields={"flags": 1 << 2, "chip_id": bytes(64)},
        signer=made.vlek("Milan"),
        issuer="asvk",
        references=made.references(operators=(made.OPERATOR,)),
    )
    claims = case.appraise()
    assert claims.attester == "snp-guest:" + "04" * 32
    assert any(made.OPERATOR in note for note in claims.notes)
    case.references = made.references()
    assert refused(case) == "snp-operator"
    case.references = made.references(operators=(made.OPERATOR,), chips=(bytes(64),))
    assert refused(case) == "snp-chip"


REFUSED_BY_DEFAULT: dict[str, tuple[dict[str, bytes | int], str]] = {
    "debug": ({"policy": 0x3001F | 1 << 19}, "snp-debug"),
    "migration allowed": ({"policy": 0x3001F | 1 << 18}, "snp-migration-agent"),
    "migration agent": ({"report_id_ma": b"\5" * 32}, "snp-migration-agent"),
    "unknown policy": ({"policy": 0x3001F | 1 << 26}, "snp-policy-unknown"),
    "vmpl": ({"vmpl": 1}, "snp-vmpl"),
    "vmpl of the host": ({"vmpl": 0xFFFFFFFF}, "snp-vmpl"),
    "launch digest": ({"measurement": b"\6" * 48}, "snp-measurement"),
    "host data": ({"host_data": bytes(32)}, "snp-host-data"),
    "not signed": ({"flags": 7 << 2}, "snp-unsigned"),
    "bound value": ({"report_data": b"\7" * 32}, "evidence-unbound"),
    "tail of the bound value": ({"report_data": made.BOUND + b"\1"}, "evidence-unbound"),
    "chip hidden": ({"chip_id": bytes(64)}, "snp-key-foreign"),
    "other chip": ({"chip_id": b"\1" * 64}, "snp-key-foreign"),
    "other product": ({"cpuid": bytes(made.CPUID["Genoa"])}, "snp-key-foreign"),
    "unknown product": ({"cpuid": b"\x1b\0\0"}, "snp-key-foreign"),
    "key kind": ({"flags": 1 << 2}, "snp-key-missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_BY_DEFAULT)
def test_refused_by_default(name: str) -> None:
    fields, code = REFUSED_BY_DEFAULT[name]
    assert refused(Case(fields=fields)) == code


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("which", ["reported", "committed", "launch"])
@pytest.mark.parametrize("name", made.TCB)
def test_firmware_below_the_floor_is_refused(
    product: str, which: str, name: str
) -> None:
    old = {name: made.TCB[name] - 1}
    signer = made.vcek(product, **old) if which == "reported" else None
    tcb = made.tcb_bytes(product, **old)
    case = Case(product, fields={f"{which}_tcb": tcb}, signer=signer)
    assert refused(case) == "snp-tcb"
    floor = {product: {**made.TCB, **old}}
    case.references = made.references(product, min_tcb=floor)
    case.appraise()


def test_turins_first_mutable_code_counts() -> None:
    tcb = made.tcb_bytes("Turin", fmc=1)
    fields: dict[str, bytes | int] = {
        f"{which}_tcb": tcb for which in ("reported", "committed", "launch")
    }
    case = Case("Turin", fields=fields, signer=made.vcek("Turin", fmc=1))
    case.references = made.references("Turin", min_tcb={"Turin": {"fmc": 2}})
    assert refused(case) == "snp-tcb"
    case.references = made.references("Turin", min_tcb={"Turin": {"fmc": 1}})
    case.appraise()


def test_a_product_without_floor_is_refused() -> None:
    case = Case(references=made.references(min_tcb={"Genoa": {}}))
    assert refused(case) == "snp-tcb"


def test_a_floor_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(MalformedError, match="ucode"):
        made.references(min_tcb={"Milan": {"ucode": 1}})


def test_a_key_of_older_firmware_is_refused() -> None:
    assert refused(Case(signer=made.vcek("Milan", snp=23))) == "snp-key-foreign"


def test_another_chips_key_is_refused() -> None:
    assert refused(Case(signer=made.vcek("Milan", chip_id=b"\1" * 64))) == (
        "snp-key-foreign"
    )


def test_pinned_chips() -> None:
    chip = made.CHIP["Milan"]
    claims = Case(references=made.references(chips=(chip,))).appraise()
    assert claims.trust.instance_identity == 2
    assert refused(Case(references=made.references(chips=(b"\1" * 64,)))) == "snp-chip"


@pytest.mark.parametrize(
    ("fact", "fields"),
    [
        ("smt-off", {"platform": 0x24}),
        ("smt-off", {"policy": 0x2001F}),
        ("ciphertext-hiding", {"platform": 0x35}),
        ("ciphertext-hiding", {"policy": 0x3001F | 1 << 24}),
        ("rapl-off", {"platform": 0x2D}),
        ("rapl-off", {"policy": 0x3001F | 1 << 23}),
        ("alias-check", {"platform": 0x20}),
        ("single-socket", {"policy": 0x3001F | 1 << 20}),
    ],
)
def test_facts_about_the_host(fact: str, fields: dict[str, bytes | int]) -> None:
    references = made.references(platform=(fact,))
    Case(fields=fields, references=references).appraise()
    strange: dict[str, bytes | int] = {"platform": 0x65}  # bit 6, as Turin sets it
    assert any("0x40" in note for note in Case(fields=strange).appraise().notes)
    without: dict[str, bytes | int] = {"platform": 0x05}
    assert refused(Case(fields=without, references=references)) == "snp-platform"
    assert f"the host: {fact} does not hold" in Case(fields=without).appraise().notes


def test_the_code_bundle_comes_from_host_data_only_where_the_parties_said_so() -> None:
    bundle = Digest.of(b"code")
    named = replace(made.references(host_data_names_code=True), code_bundle=bundle)
    case = Case(fields={"host_data": bundle.raw}, references=named)
    assert case.appraise().code_bundle == bundle
    case.fields = {}
    assert refused(case) == "snp-host-data"
    unsaid = made.references(host_data=(bundle.raw,))
    case = Case(fields={"host_data": bundle.raw}, references=unsaid)
    assert case.appraise().code_bundle is None
    case.references = replace(unsaid, code_bundle=bundle)
    assert refused(case) == "code-bundle-differs"


def test_host_data_that_names_code_needs_a_code_to_compare_with() -> None:
    references = made.references(host_data_names_code=True)
    assert refused(Case(references=references)) == "snp-host-data"


class TestChain:
    def test_amds_roots_do_not_accept_ours(self) -> None:
        case = Case(collateral=made.authority("Milan").collateral())
        body = _body(case)
        with pytest.raises(EvidenceError) as caught:
            examine_snp(
                body.to_evidence(),
                AppraisalBasis(
                    bound=made.BOUND,
                    references=made.references(),
                    collateral=made.authority("Milan").collateral(),
                    at_s=made.AT_S,
                ),
            )
        assert caught.value.code == "chain-root"

    def test_another_products_root_is_refused(self) -> None:
        roots = {"Milan": made.authority("Genoa").roots["Genoa"]}
        with pytest.raises(EvidenceError) as caught:
            _examine(_body(Case()), roots=roots)
        assert caught.value.code == "chain-root"

    def test_the_intermediate_may_not_sign_reports_keys_of_the_other_kind(self) -> None:
        assert refused(Case(issuer="asvk")) == "chain-broken"

    def test_time(self) -> None:
        late = made.AT_S + 2000 * 86_400
        assert refused(Case(at_s=late)) == "chain-expired"

    def test_without_revocation_list(self) -> None:
        nothing = Collateral(as_of_s=made.AT_S)
        assert refused(Case(collateral=nothing)) == "collateral-missing"
        waived = made.references(revocation="waived")
        claims = Case(collateral=nothing, references=waived).appraise()
        assert "AMD's revocation list was not checked" in claims.notes

    def test_revoked(self) -> None:
        revoked = made.authority("Milan").collateral("ask")
        assert refused(Case(collateral=revoked)) == "chain-revoked"

    def test_revocation_list_of_another_issuer(self) -> None:
        raw = made.authority("Milan").crl(issuer="ask")
        items = {"snp/crl-Milan": raw}
        foreign = Collateral(as_of_s=made.AT_S, items=items)
        assert refused(Case(collateral=foreign)) == "collateral-foreign"

    def test_revocation_list_of_another_root_of_that_name(self) -> None:
        other = made.make_authority("Milan").collateral()
        assert refused(Case(collateral=other)) == "crl-not-genuine"

    def test_revocation_list_that_expired(self) -> None:
        raw = made.authority("Milan").crl(at_s=made.AT_S - 40 * 86_400)
        old = Collateral(as_of_s=made.AT_S, items={"snp/crl-Milan": raw})
        assert refused(Case(collateral=old)) == "crl-expired"

    def test_collateral_that_is_too_old(self) -> None:
        fresh = made.authority("Milan").collateral()
        old = replace(fresh, as_of_s=made.AT_S - 31 * 86_400)
        assert refused(Case(collateral=old)) == "collateral-stale"

    def test_certificates_may_come_from_collateral(self) -> None:
        authority, signer = made.authority("Milan"), made.vcek("Milan")
        body = SnpBody(report=signer.sign(made.report()))
        chain = {"snp/chain/Milan/ask": authority.der("ask"),
                 "snp/chain/Milan/ark": authority.der("ark")}  # fmt: skip
        key = {f"snp/vcek/{made.CHIP['Milan'].hex()}": signer.certificate}
        fresh = authority.collateral()
        full = replace(fresh, items={**fresh.items, **chain, **key})
        assert _examine(body, collateral=full).level is Level.TEE
        keyless = replace(fresh, items={**fresh.items, **chain})
        with pytest.raises(EvidenceError) as caught:
            _examine(body, collateral=keyless)
        assert caught.value.code == "snp-key-missing"


def test_body_round_trip() -> None:
    body = _body(Case())
    assert SnpBody.parse(body.to_evidence().body) == body


def test_runtime_events_have_no_place() -> None:
    plain = {"certificates": [], "events": [], "report": ""}
    with pytest.raises(MalformedError, match="unknown field"):
        SnpBody.parse(encode(plain))


def test_too_many_certificates() -> None:
    with pytest.raises(MalformedError):
        SnpBody(report=b"", certificates=(b"",) * 9)


def test_without_references_nothing_is_right() -> None:
    case = Case(references=ReferenceValues())
    with pytest.raises(PolicyError) as caught:
        case.appraise()
    assert caught.value.code == "references-missing"


def test_it_is_registered_with_amds_roots() -> None:
    assert loaded(MEDIA_TYPE) is examine_snp


def test_references_default_to_refusal() -> None:
    references = SnpReferences(measurement=(), host_data=(), min_tcb={})
    assert references.max_vmpl == 0
    assert not references.operators
    assert references.revocation == "required"


def _body(case: Case) -> SnpBody:
    authority, signer = made.authority(case.product), made.vcek(case.product)
    chain = (signer.certificate, authority.der("ask"), authority.der("ark"))
    return SnpBody(report=signer.sign(made.report()), certificates=chain)


def _examine(
    body: SnpBody,
    *,
    roots: dict[str, Digest] | None = None,
    collateral: Collateral | None = None,
) -> Claims:
    authority = made.authority("Milan")
    return examine_snp(
        body.to_evidence(),
        AppraisalBasis(
            bound=made.BOUND,
            references=made.references(),
            collateral=collateral or authority.collateral(),
            at_s=made.AT_S,
        ),
        roots or authority.roots,
    )
