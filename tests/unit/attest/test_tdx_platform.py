"""The platform under a TDX guest: its status, Intel's lists, the chain to the root."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sealift.attest.tdx.tcb import UNKNOWN, converge
from sealift.attest.verifier import require_passed
from sealift.errors import (
    EvidenceError,
    MalformedError,
    StaleError,
)
from tests.sim.intel_world import FMSPC, IntelWorld, pem, svn_level
from tests.sim.made_chain import AT_S, DAY_S, make
from tests.sim.tdx_made import (
    GOOD,
    REPORT_DATA,
    WORLD,
    Change,
    changed,
    examine,
    failed,
    refused,
)


def status(tcb: Change = id, identity: Change = id, world: IntelWorld = WORLD) -> str:
    claims = examine(world, collateral=world.collateral(tcb, identity))
    return claims.notes[0].removeprefix("platform TCB ")


def with_levels(*levels: dict[str, Any]) -> Change:
    return lambda plain: plain.update(tcbLevels=list(levels))


def test_the_first_level_that_is_reached_counts() -> None:
    higher = WORLD.level("UpToDate", pcesvn=WORLD.pcesvn + 1)
    reached = WORLD.level("SWHardeningNeeded", "INTEL-SA-1")
    lower = WORLD.level("OutOfDate", pcesvn=1)
    assert status(with_levels(higher, reached, lower)) == "SWHardeningNeeded"
    assert status(with_levels(higher, lower, reached)) == "OutOfDate"
    assert status(with_levels(higher)) == UNKNOWN
    assert status(with_levels()) == UNKNOWN


@pytest.mark.parametrize("place", range(16))
def test_each_component_counts(place: int) -> None:
    for name in ("sgxtcbcomponents", "tdxtcbcomponents"):
        level = WORLD.level("UpToDate")
        level["tcb"][name][place]["svn"] += 1
        # The module's own versions are judged by its identity from major version 1 on.
        judged = name == "sgxtcbcomponents" or place >= 2
        assert status(with_levels(level)) == (UNKNOWN if judged else "UpToDate")


def test_a_module_of_major_version_0_is_judged_by_components() -> None:
    world = changed(tee_tcb_svn=bytes([5, 0, 2]) + bytes(13))
    assert status(world=world) == "UpToDate"
    level = world.level("UpToDate")
    level["tcb"]["tdxtcbcomponents"][0]["svn"] += 1
    assert status(with_levels(level), world=world) == UNKNOWN


@pytest.mark.parametrize(
    ("svn", "expected"),
    [(9, "UpToDate"), (2, "OutOfDate"), (1, "Revoked"), (0, UNKNOWN)],
)
def test_parts_converge(svn: int, expected: str) -> None:
    world = changed(tee_tcb_svn=bytes([svn, 1, 2]) + bytes(13))
    assert status(world=world, tcb=with_levels(WORLD.level("UpToDate"))) == expected
    world = IntelWorld()
    world.qe_svn = svn
    expected = "OutOfDate" if svn == 2 else expected

    def identity(plain: dict[str, Any]) -> None:
        plain["tcbLevels"][1] = svn_level(2, "OutOfDate", "INTEL-SA-9")

    assert status(identity=identity, world=world) == expected


def test_convergence_of_statuses() -> None:
    worse = {
        "UpToDate": "OutOfDate",
        "SWHardeningNeeded": "OutOfDate",
        "ConfigurationNeeded": "OutOfDateConfigurationNeeded",
        "ConfigurationAndSWHardeningNeeded": "OutOfDateConfigurationNeeded",
        "OutOfDate": "OutOfDate",
        "OutOfDateConfigurationNeeded": "OutOfDateConfigurationNeeded",
        "Revoked": "Revoked",
        UNKNOWN: UNKNOWN,
    }
    for platform, expected in worse.items():
        assert converge(platform, ["UpToDate", "UpToDate"]) == platform
        assert converge(platform, ["UpToDate", "OutOfDate"]) == expected
        assert converge(platform, ["OutOfDate", "UpToDate"]) == expected
        assert converge(platform, [UNKNOWN]) == UNKNOWN
        if platform != UNKNOWN:
            assert converge(platform, ["Revoked"]) == "Revoked"


@pytest.mark.parametrize(
    ("name", "hardware"),
    [("SWHardeningNeeded", 32), ("OutOfDate", 32), ("Revoked", 96)],
)
def test_other_statuses_are_refused_unless_agreed(name: str, hardware: int) -> None:
    level = WORLD.level(name, "INTEL-SA-1")
    collateral = WORLD.collateral(with_levels(level))
    claims = examine(collateral=collateral)
    assert failed(claims) == {"tcb-status"}
    assert claims.trust.hardware == hardware
    assert "advisories INTEL-SA-1" in claims.notes
    agreed = WORLD.references(tcb_statuses=("UpToDate", name))
    assert not failed(examine(collateral=collateral, references=agreed))


# ------------------------------------------------------------------ Intel's signed lists


LISTS: dict[str, tuple[Change, Change, str]] = {
    "other platform": (lambda p: p.update(fmspc="00" * 6), id, "collateral-foreign"),
    "other pce": (lambda p: p.update(pceId="0001"), id, "collateral-foreign"),
    "for SGX": (lambda p: p.update(id="SGX"), id, "collateral-foreign"),
    "identity of SGX": (id, lambda p: p.update(id="QE"), "collateral-foreign"),
    "no such module": (
        lambda p: p.update(tdxModuleIdentities=[]),
        id,
        "tdx-module-unknown",
    ),
    "module of another signer": (
        lambda p: p["tdxModuleIdentities"][0].update(mrsigner="01" * 48),
        id,
        "tdx-module-unknown",
    ),
    "enclave of another signer": (
        id,
        lambda p: p.update(mrsigner="01" * 32),
        "quoting-enclave-unknown",
    ),
    "other product": (id, lambda p: p.update(isvprodid=3), "quoting-enclave-unknown"),
    "other attributes": (
        id,
        lambda p: p.update(attributes="13" + "00" * 15),
        "quoting-enclave-unknown",
    ),
    "other miscselect": (
        id,
        lambda p: p.update(miscselect="00000001"),
        "quoting-enclave-unknown",
    ),
}


@pytest.mark.parametrize(("tcb", "identity", "code"), LISTS.values(), ids=LISTS)
def test_lists_about_something_else_are_refused(
    tcb: Change, identity: Change, code: str
) -> None:
    refused(code, collateral=WORLD.collateral(tcb, identity))


def test_a_debug_quoting_enclave_is_refused() -> None:
    world = IntelWorld()
    world.qe_attributes = bytes([0x13]) + bytes(15)
    refused("quoting-enclave-unknown", world)


def test_masked_bits_of_the_enclave_do_not_count() -> None:
    world = IntelWorld()
    world.qe_attributes = bytes([0x15]) + bytes(15)  # 4 is outside the mask
    assert not failed(examine(world))


def test_seam_attributes_count() -> None:
    refused("tdx-module-unknown", changed(seam_attributes=b"\1" + bytes(7)))
    refused("tdx-module-unknown", changed(mrsignerseam=b"\1" + bytes(47)))


@pytest.mark.parametrize("at_s", [AT_S - 2 * DAY_S, AT_S + 2 * DAY_S])
def test_lists_of_another_time_are_refused(at_s: int) -> None:
    lists = WORLD.collateral(
        root_crl=WORLD.root.revoke(from_s=0, until_s=AT_S * 2).der,
        pck_crl=WORLD.authority.revoke(from_s=0, until_s=AT_S * 2).der,
    )
    claims = examine(collateral=replace(lists, as_of_s=at_s), at_s=at_s)
    assert failed(claims) == {"tcb-lists-expired"}
    with pytest.raises(StaleError):
        require_passed(claims.checks)


def test_old_collateral_is_refused() -> None:
    old = replace(GOOD, as_of_s=AT_S - 31 * DAY_S)
    assert failed(examine(collateral=old)) == {"collateral-stale"}
    future = replace(GOOD, as_of_s=AT_S + 1)
    assert failed(examine(collateral=future)) == {"collateral-stale"}


def test_an_old_evaluation_is_refused() -> None:
    assert not failed(examine(references=WORLD.references(min_tcb_evaluation=17)))
    # The lower of both lists counts: 18 for the platform, 17 for its quoting enclave.
    newer = WORLD.references(min_tcb_evaluation=18)
    assert failed(examine(references=newer)) == {"tcb-evaluation-old"}


WRONG: dict[str, tuple[Change, Change, list[str]]] = {
    "platform": (lambda p: p.update(fmspc="00" * 6), id, ["FMSPC 000000000000;"]),
    "identity": (id, lambda p: p.update(id="QE"), ["qe-identity", "QE; TD_QE is needed"]),
    "both": (
        lambda p: p.update(id="SGX"), lambda p: p.update(id="QE"),
        ["tcb-info", "SGX; TDX is needed", "qe-identity"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("info", "identity", "words"), WRONG.values(), ids=WRONG)
def test_a_foreign_list_is_named(
    info: Change, identity: Change, words: list[str]
) -> None:
    with pytest.raises(EvidenceError) as caught:
        examine(collateral=WORLD.collateral(info, identity))
    assert caught.value.code == "collateral-foreign"
    assert all(word in caught.value.why for word in words)


def test_what_is_missing_is_named_with_the_platform() -> None:
    items = {n: raw for n, raw in GOOD.items.items() if "tcb-info" not in n}
    items["tdx/tcb-info-chain"] = GOOD.items["tdx/tcb-info-chain"]
    with pytest.raises(EvidenceError) as caught:
        examine(collateral=replace(GOOD, items=items))
    assert f"tdx/tcb-info/{FMSPC.hex()}" in caught.value.what
    with pytest.raises(EvidenceError) as caught:
        examine(collateral=replace(GOOD, items={}))
    assert "no bundle" in caught.value.what


@pytest.mark.parametrize("name", sorted(GOOD.items))
def test_each_item_is_needed(name: str) -> None:
    items = {each: raw for each, raw in GOOD.items.items() if each != name}
    refused("collateral-missing", collateral=replace(GOOD, items=items))


def test_the_item_of_a_platform_goes_before_the_general_one() -> None:
    items = dict(GOOD.items)
    items["tdx/tcb-info/90c06f000000"] = items["tdx/tcb-info"]
    items["tdx/tcb-info"] = b"of another platform"
    assert not failed(examine(collateral=replace(GOOD, items=items)))


def test_a_list_signed_by_a_platform_is_refused() -> None:
    """A key under Intel's root is not enough: only the signer of lists signs lists."""
    forged = WORLD.sign_list("tcbInfo", WORLD.tcb_info(), WORLD.pck.key)
    chain = pem(WORLD.pck, WORLD.authority, WORLD.root)
    refused(
        "quote-not-genuine",
        collateral=WORLD.collateral(tcb_info=forged, tcb_info_chain=chain),
    )
    named = make("Intel SGX TCB Signing", WORLD.authority, ca=False)
    forged = WORLD.sign_list("tcbInfo", WORLD.tcb_info(), named.key)
    chain = pem(named, WORLD.authority, WORLD.root)
    refused(
        "quote-not-genuine",
        collateral=WORLD.collateral(tcb_info=forged, tcb_info_chain=chain),
    )


def test_the_other_list_in_its_place_is_malformed() -> None:
    swapped = GOOD.items["tdx/qe-identity"]
    with pytest.raises(MalformedError):
        examine(collateral=WORLD.collateral(tcb_info=swapped))


# ----------------------------------------------------------------------------- the chain


def test_a_revoked_platform_is_refused() -> None:
    revoked = WORLD.authority.revoke(WORLD.pck.certificate.serial).der
    refused("chain-revoked", collateral=WORLD.collateral(pck_crl=revoked))


@pytest.mark.parametrize("who", ["authority", "signer"])
def test_a_revoked_issuer_or_signer_is_refused(who: str) -> None:
    serial = getattr(WORLD, who).certificate.serial
    revoked = WORLD.root.revoke(serial).der
    refused("chain-revoked", collateral=WORLD.collateral(root_crl=revoked))


def test_lists_of_another_authority_are_refused() -> None:
    """A list that does not concern the platform must not pass for one that does."""
    other = make("Intel SGX PCK Processor CA", WORLD.root, usage=(True, True))
    foreign = other.revoke().der
    refused("collateral-foreign", collateral=WORLD.collateral(pck_crl=foreign))
    refused(
        "collateral-foreign",
        collateral=WORLD.collateral(pck_crl=GOOD.items["tdx/root-crl"]),
    )


def test_an_expired_list_is_refused() -> None:
    stale = WORLD.authority.revoke(until_s=AT_S - 1).der
    refused("crl-expired", collateral=WORLD.collateral(pck_crl=stale))


def test_another_attestation_key_is_refused() -> None:
    """The quoting enclave vouches for one key; a quote by another is worth nothing."""
    certified = WORLD.certify()
    world = IntelWorld()
    world.__dict__.update(WORLD.__dict__)
    world.attestation_key = IntelWorld().attestation_key
    world.certify = lambda: certified  # type: ignore[method-assign]
    refused("quote-not-genuine", quote=world.quote(REPORT_DATA))


def test_another_platform_key_is_refused() -> None:
    world = IntelWorld()
    world.__dict__.update(WORLD.__dict__)
    world.pck = replace(WORLD.pck, key=IntelWorld().pck.key)
    refused("quote-not-genuine", quote=world.quote(REPORT_DATA))
