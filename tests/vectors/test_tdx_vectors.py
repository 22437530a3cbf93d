"""Every TDX and SGX vector gets its verdict, for its reason; so does every change."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import replace
from pathlib import Path
from random import Random  # noqa: TID251 - places that are the same each time

import dcap_qvl
import pytest

from sealift.attest.collateral import DAY_S, INTEL_SGX_ROOTS
from sealift.attest.configfs import TdxAttester, TsmReader
from sealift.attest.level import Level, Tier
from sealift.attest.tdx.evidence import TdxBody, parse_quote
from sealift.attest.tdx.platform import (
    CollateralSource,
    verify_quote,
    verify_signatures,
)
from sealift.attest.tdx.verifier import check_logs, check_report
from sealift.attest.verifier import Claims, require_passed
from sealift.errors import (
    EvidenceError,
    MalformedError,
    PolicyError,
    RefusedError,
    UnavailableError,
)
from tests.sim.tdx_vectors import (
    AT_S,
    OUTDATED,
    OUTDATED_AT_S,
    PHALA_AT_S,
    SGX,
    V4,
    collateral_of,
    examine,
    references_of,
    td_report,
)
from tests.sim.tsm_folder import StandInTsmFolder
from tests.sim.vectors import vector

pytestmark = pytest.mark.vectors


def failed(claims: Claims) -> set[str]:
    return {each.code for each in claims.checks if not each.passed}


def refused(code: str, **kwargs: object) -> None:
    with pytest.raises(EvidenceError) as caught:
        examine(**kwargs)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_up_to_date_platform_is_affirming() -> None:
    claims = examine(V4)
    require_passed(claims.checks)
    assert claims.level is Level.TEE
    assert claims.trust.tier is Tier.AFFIRMING
    assert "platform TCB UpToDate" in claims.notes
    assert claims.measurements["mrtd"] == td_report(vector(V4)).mrtd


def test_platform_of_no_level_is_refused() -> None:
    claims = examine(OUTDATED)
    assert failed(claims) == {"tcb-status"}
    assert claims.trust.hardware == 97
    with pytest.raises(PolicyError, match="TCB status"):
        require_passed(claims.checks)


def test_sgx_quote_has_its_status_and_advisories() -> None:
    quote = parse_quote(vector(SGX))
    verdict = verify_quote(quote, collateral_of(SGX), at_s=AT_S[SGX])
    assert verdict.status == "ConfigurationAndSWHardeningNeeded"
    assert verdict.advisories == ("INTEL-SA-00289", "INTEL-SA-00615")
    refused("quote-not-tdx", quote=vector(SGX))


def test_unbound_is_refused() -> None:
    assert failed(examine(bound=secrets.token_bytes(64))) == {"evidence-unbound"}


# ---------------------------------------------------------------- the other quotes


V5 = "tdx/gotdx_quote_v5_sample.dat"
TD_QUOTES = {  # quote -> the vector whose revocation lists fit its authority and time
    "tdx/gotdx_cos-113-tdx-quote.dat": V4,
    "tdx/trustee_tdx_quote_4.dat": V4,
    "tdx/trustee_tdx_quote_5.dat": V4,
    "tdx/trustee_tdx_quote_6.dat": V4,
    "azvtpm/az-tdx-vtpm_td-quote.bin": V4,
    V4: V4,
    V5: OUTDATED,
    OUTDATED: OUTDATED,
}


def source_for(name: str, kind: str = "TDX") -> CollateralSource:
    roots = tuple(INTEL_SGX_ROOTS.values())
    return CollateralSource(collateral_of(name), kind, roots, AT_S[name])


@pytest.mark.parametrize(("name", "lists"), TD_QUOTES.items())
def test_every_signature_of_every_quote_verifies(name: str, lists: str) -> None:
    quote = parse_quote(vector(name))
    assert verify_signatures(quote, source_for(lists)).fmspc


def test_the_quote_inside_azure_evidence_verifies() -> None:
    text = json.loads(vector("azvtpm/az-tdx-vtpm_evidence-v1.json"))["td_quote"]
    quote = parse_quote(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    assert verify_signatures(quote, source_for(V4)).fmspc


def test_a_quote_reads_as_others_read_it() -> None:
    """Trustee's expected claims over one of its quotes, field by field."""
    expected = json.loads(vector("tdx/trustee_parse_tdx_claims_expected.json"))
    quote = parse_quote(vector("tdx/trustee_tdx_quote_4.dat"))
    report = td_report(vector("tdx/trustee_tdx_quote_4.dat"))
    platform = verify_signatures(quote, source_for(V4))
    found = {
        "mr_config_id": report.mrconfigid,
        "mr_owner": report.mrowner,
        "mr_owner_config": report.mrownerconfig,
        "mr_seam": report.mrseam,
        "mr_td": report.mrtd,
        "mrsigner_seam": report.mrsignerseam,
        "report_data": report.report_data,
        **{f"rtmr_{i}": value for i, value in enumerate(report.rtmr)},
        "seam_attributes": report.seam_attributes,
        "tcb_svn": report.tee_tcb_svn,
        "td_attributes": report.attributes.to_bytes(8, "little"),
        "xfam": report.xfam.to_bytes(8, "little"),
    }
    assert {k: v.hex() for k, v in found.items()} == expected["quote"]["body"]
    assert platform.instance is not None
    # The file has that number the other way round.
    assert platform.instance[::-1].hex() == expected["platform_instance_id"]


def test_a_recorded_platform_is_collected_from(tmp_path: Path) -> None:
    """A stand-in of the kernel that replays a real quote and its firmware's log."""
    quote = vector("tdx/gotdx_cos-113-tdx-quote.dat")
    ccel = tmp_path / "CCEL"
    ccel.write_bytes(vector("tdx/gotdx_ccel_data.dat"))
    folder = StandInTsmFolder(lambda inblob, level: (quote, b""))
    attester = TdxAttester(TsmReader(folder), ccel=ccel)
    body = TdxBody.parse(attester.collect(bytes(32)).body)  # the challenge of that day
    assert body.quote == quote
    assert len(body.ccel or b"") < 32 << 10, "without the padding of its buffer"
    checks = check_logs(td_report(quote), body)
    assert len(checks) == 4
    assert all(each.passed for each in checks)
    with pytest.raises(UnavailableError):
        attester.collect(secrets.token_bytes(32))


def test_a_quote_of_a_platform_without_collateral_is_refused() -> None:
    for name in ("gotdx_cos-113-tdx-quote.dat", "trustee_tdx_quote_6.dat"):
        refused("collateral-foreign", quote=vector(f"tdx/{name}"))


def test_up_to_date_quote_of_version_5() -> None:
    """Its platform is of the kind that the collateral of another quote is about."""
    quote = vector(V5)
    report = td_report(quote)
    claims = examine(
        OUTDATED,
        quote=quote,
        bound=report.report_data,
        references=references_of(report),
    )
    require_passed(claims.checks)
    assert claims.trust.tier is Tier.AFFIRMING


def test_a_guest_with_a_service_guest_is_refused() -> None:
    quote = vector("tdx/trustee_tdx_quote_5.dat")
    report = td_report(quote)
    claims = examine(
        OUTDATED,
        quote=quote,
        bound=report.report_data,
        references=references_of(report),
    )
    assert failed(claims) == {"tdx-service-td", "tcb-status"}


def test_a_debug_guest_is_refused() -> None:
    """Genuine, with Intel's list of its kind of platform, which is of another time."""
    quote = vector("tdx/trustee_tdx_quote_4.dat")
    report = td_report(quote)
    given = collateral_of(V4)
    own = vector("tdx/gotdx_sample_tcbInfo_response")
    claims = examine(
        quote=quote,
        bound=report.report_data,
        references=references_of(report),
        collateral=replace(given, items={**given.items, "tdx/tcb-info": own}),
    )
    assert "tdx-debug" in failed(claims)
    assert failed(claims) <= {"tdx-debug", "tcb-lists-expired", "tcb-status"}
    assert claims.trust.runtime_opaque == 96
    with pytest.raises(PolicyError, match="TDX debug"):
        require_passed(claims.checks)


def test_azure_guests_allow_faults_and_are_refused_by_default() -> None:
    report = td_report(vector("azvtpm/az-tdx-vtpm_td-quote.bin"))
    references = references_of(report).tdx
    assert references is not None
    found = check_report(report, report.report_data, references)
    assert {each.code for each in found if not each.passed} == {"tdx-sept-ve"}


def test_firmware_log_replays_to_every_register() -> None:
    report = td_report(vector("tdx/gotdx_cos-113-tdx-quote.dat"))
    log = vector("tdx/gotdx_ccel_data.dat")
    assert len(check_logs(report, body_with(log))) == 4
    assert all(each.passed for each in check_logs(report, body_with(log)))
    without = check_logs(report, body_with(None))
    assert [each.passed for each in without] == [not any(report.rtmr[3])]
    other = check_logs(td_report(vector(V4)), body_with(log))
    assert {each.code for each in other} >= {"tdx-log"}


def body_with(ccel: bytes | None) -> TdxBody:
    return TdxBody(quote=b"", ccel=ccel)


# ----------------------------------------------------------------------- every byte


SEED = 4242
MANY = 300


def places(size: int) -> list[int]:
    """A sample that is the same each time."""
    stream = Random(SEED)
    return sorted(stream.sample(range(size), min(MANY, size)))


def flipped(raw: bytes, place: int, mask: int) -> bytes:
    return raw[:place] + bytes([raw[place] ^ mask]) + raw[place + 1 :]


def uncovered_in_quote(quote: bytes) -> set[int]:
    """Places that no signature covers: line breaks of PEM, zeros at the end."""
    start = quote.find(b"-----BEGIN")
    end = start + len(parse_quote(quote).chain)
    breaks = {i for i in range(start, end) if quote[i] in b"\n\0"}
    return breaks | set(range(end, len(quote)))


@pytest.mark.parametrize(("name", "lists"), [(V4, V4), (V5, OUTDATED)])
def test_every_covered_byte_of_a_quote_counts(name: str, lists: str) -> None:
    quote, source = vector(name), source_for(lists)
    start = quote.find(b"-----BEGIN")
    uncovered = uncovered_in_quote(quote)
    pem = {start + place for place in places(len(quote) - start)}
    for place in [*range(start), *sorted(pem - uncovered)]:
        with pytest.raises((EvidenceError, MalformedError)):
            verify_signatures(parse_quote(flipped(quote, place, 0x01)), source)


@pytest.mark.parametrize(("name", "lists"), [(V4, V4), (V5, OUTDATED)])
def test_uncovered_bytes_of_a_quote_change_no_claim(name: str, lists: str) -> None:
    quote = vector(name)
    given = {"bound": td_report(quote).report_data}
    given["references"] = references_of(td_report(quote))
    expected = examine(lists, quote=quote, **given)
    for place in sorted(uncovered_in_quote(quote))[::5]:
        for mask in (0x01, 0x0A ^ 0x20):
            try:
                found = examine(lists, quote=flipped(quote, place, mask), **given)
            except (EvidenceError, MalformedError):
                continue
            assert found == expected


def uncovered_in_item(name: str, raw: bytes) -> set[int]:
    """Line breaks of PEM; the case of hex digits, which one flipped bit never changes."""
    return {i for i in range(len(raw)) if raw[i] in b"\n"} if "chain" in name else set()


UNUSED = "tdx/pck-crl-chain"  # quotes carry that chain themselves


@pytest.mark.parametrize(
    "item",
    ["tcb-info", "tcb-info-chain", "qe-identity", "qe-identity-chain", "root-crl",
     "pck-crl"],
)  # fmt: skip
def test_every_covered_byte_of_collateral_counts(item: str) -> None:
    name = f"tdx/{item}"
    given = collateral_of(V4)
    raw = given.items[name]
    for place in set(places(len(raw))) - uncovered_in_item(name, raw):
        changed = {**given.items, name: flipped(raw, place, 0x01)}
        with pytest.raises((RefusedError, MalformedError)):
            examine(collateral=replace(given, items=changed))


def test_uncovered_bytes_of_collateral_change_no_claim() -> None:
    given = collateral_of(V4)
    expected = examine(collateral=given)
    without = {n: raw for n, raw in given.items.items() if n != UNUSED}
    assert examine(collateral=replace(given, items=without)) == expected
    raw = given.items["tdx/tcb-info"]
    outer = raw[:-131] + raw[-131:].upper().replace(b"SIGNATURE", b"signature") + b"\n"
    changed = replace(given, items={**given.items, "tdx/tcb-info": outer})
    assert examine(collateral=changed) == expected
    chain = given.items["tdx/tcb-info-chain"].replace(b"\n", b"\r\n")
    changed = replace(given, items={**given.items, "tdx/tcb-info-chain": chain})
    assert examine(collateral=changed) == expected


# ------------------------------------------------------------------- another verifier


def oracle(
    name: str, quote: bytes, collateral: bytes, at_s: int
) -> tuple[str, list[str]]:
    """Phala's dcap-qvl, written in Rust by others."""
    given = dcap_qvl.QuoteCollateralV3.from_json(collateral.decode())
    report = dcap_qvl.verify(quote, given, at_s)
    return report.status, sorted(report.advisory_ids)


@pytest.mark.parametrize("name", [V4, SGX])
def test_another_verifier_says_the_same(name: str) -> None:
    quote, raw = vector(name), vector(f"{name}_collateral.json")
    verdict = verify_quote(parse_quote(quote), collateral_of(name), at_s=AT_S[name])
    expected = (verdict.status, list(verdict.advisories))
    assert oracle(name, quote, raw, AT_S[name]) == expected


def test_another_verifier_knows_the_other_quotes_of_the_platform() -> None:
    raw = vector(f"{OUTDATED}_collateral.json")
    with pytest.raises(ValueError, match="No matching TCB level"):
        oracle(OUTDATED, vector(OUTDATED), raw, OUTDATED_AT_S)
    assert oracle(V5, vector(V5), raw, OUTDATED_AT_S) == ("UpToDate", [])
    verdict = verify_quote(
        parse_quote(vector(V5)), collateral_of(OUTDATED), at_s=OUTDATED_AT_S
    )
    assert (verdict.status, verdict.advisories) == ("UpToDate", ())


@pytest.mark.parametrize("name", [V4, SGX])
def test_both_refuse_what_was_changed(name: str) -> None:
    quote, raw = vector(name), vector(f"{name}_collateral.json")
    given = collateral_of(name)
    end = len(parse_quote(quote).signed) + 4 + 64
    for place in [*places(end)[::10], *range(end + 70, end + 300, 10)]:
        changed = flipped(quote, place, 0x10)
        with pytest.raises(ValueError, match=r"."):
            oracle(name, changed, raw, AT_S[name])
        with pytest.raises((EvidenceError, MalformedError)):
            verify_quote(parse_quote(changed), given, at_s=AT_S[name])


def test_both_refuse_collateral_of_another_time() -> None:
    raw = vector(f"{V4}_collateral.json")
    for at_s in (PHALA_AT_S - 9 * DAY_S, PHALA_AT_S + 60 * DAY_S):
        with pytest.raises(ValueError, match=r"."):
            oracle(V4, vector(V4), raw, at_s)
        with pytest.raises(RefusedError):
            require_passed(examine(at_s=at_s).checks)


def test_collateral_of_later_days_grows_stale() -> None:
    given = collateral_of(V4)
    old = replace(given, as_of_s=PHALA_AT_S - 40 * DAY_S)
    assert failed(examine(collateral=old)) == {"collateral-stale"}
