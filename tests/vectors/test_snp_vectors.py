"""Reports of real AMD chips: the right verdict, for the right reason.

What is changed and refused: every byte of every report, a sample of every certificate.
"""

from __future__ import annotations

from random import Random  # noqa: TID251 - which bits a test changes

import pytest

from sealift.attest.collateral import AMD_ARKS
from sealift.attest.snp.endorsement import parse_certificates, parse_endorsement
from sealift.attest.snp.evidence import parse_report, parse_tcb
from sealift.attest.verifier import require_passed
from sealift.crypto.certificate import Certificate
from sealift.crypto.chain import verify_chain
from sealift.crypto.vendorkeys import EcdsaKey
from sealift.errors import EvidenceError, MalformedError
from tests.sim.snp_vectors import (
    AMAZON,
    AT_S,
    DEBUGGED,
    VCEK,
    VLEK,
    SnpVector,
    certificates_of,
    examine,
    references_of,
    report_of,
)
from tests.sim.vectors import vector

pytestmark = pytest.mark.vectors

ALL = {"debugged": DEBUGGED, "vcek": VCEK, "vlek": VLEK}
SAMPLE = 300


def failed(chosen: SnpVector, **changes: object) -> list[str]:
    references = references_of(report_of(chosen), **changes)
    checks = examine(chosen, references=references).checks
    return [each.code for each in checks if not each.passed]


def test_a_chips_own_key() -> None:
    claims = examine(VCEK)
    require_passed(claims.checks)
    assert claims.attester.startswith("snp-chip:c38427a30d4c7af9d96f7a15b97269825a64cb")
    assert claims.measurements["launch"].hex().startswith("a1f3930413247bb38cfc1715")
    assert (claims.trust.hardware, claims.trust.runtime_opaque) == (2, 2)
    assert "the host: alias-check does not hold" in claims.notes


def test_an_operators_key() -> None:
    claims = examine(VLEK)
    require_passed(claims.checks)
    assert claims.attester.startswith("snp-guest:62e04fba700afd93")
    assert f"the key names its operator and no chip: {AMAZON}" in claims.notes
    assert "the host: alias-check does not hold" not in claims.notes


def test_a_debugged_guest_is_refused_for_that() -> None:
    assert failed(DEBUGGED) == ["snp-debug"]
    trust = examine(DEBUGGED).trust
    assert (trust.hardware, trust.runtime_opaque) == (96, 96)


@pytest.mark.parametrize(
    ("chosen", "changes", "codes"),
    [
        (VLEK, {"max_vmpl": 0}, ["snp-vmpl"]),
        (VLEK, {"operators": ()}, ["snp-operator"]),
        (VCEK, {"measurement": (bytes(48),)}, ["snp-measurement"]),
        (VCEK, {"host_data": ()}, ["snp-host-data"]),
        (VCEK, {"min_tcb": {"Milan": {"microcode": 0x74}}}, ["snp-tcb"] * 3),
        (VCEK, {"min_tcb": {"Genoa": {}}}, ["snp-tcb"] * 3),
        (VCEK, {"chips": (bytes(64),)}, ["snp-chip"]),
        (VCEK, {"platform": ("alias-check",)}, ["snp-platform"]),
    ],
)
def test_what_references_refuse(
    chosen: SnpVector, changes: dict[str, object], codes: list[str]
) -> None:
    assert failed(chosen, **changes) == codes


def test_without_a_revocation_list_it_is_refused_unless_that_was_agreed() -> None:
    references = references_of(report_of(VCEK), revocation="required")
    with pytest.raises(EvidenceError) as caught:
        examine(VCEK, references=references)
    assert caught.value.code == "collateral-missing"


def test_certificates_are_judged_at_the_time_asked_for() -> None:
    with pytest.raises(EvidenceError) as caught:
        examine(VLEK, at_s=AT_S + 365 * 86_400)
    assert caught.value.code == "chain-expired"


def test_facts_of_the_reports() -> None:
    old, new = report_of(VCEK), report_of(VLEK)
    assert (old.version, old.cpuid, new.version) == (2, None, 3)
    assert (new.product, new.cpuid, new.vmpl) == ("Milan", (0x19, 1, 1), 1)
    assert new.report_id_ma == b"\xff" * 32
    assert new.current_build == (1, 55, 29)
    tcb = parse_tcb(new.reported_tcb, "Milan")
    assert (tcb.boot_loader, tcb.tee, tcb.snp, tcb.microcode) == (4, 0, 24, 0xD9)


@pytest.mark.parametrize(
    ("key", "chain", "product"),
    [
        ("snp/virtee_vcek_turin.der", "snp/turin_ask_ark_asvk.pem", "Turin"),
        ("snp/virtee_vcek_turin.der", "snp/virtee_cert_chain_turin", "Turin"),
        ("azvtpm/az-snp-vtpm_vcek-genoa.pem", "snp/genoa_ask_ark_asvk.pem", "Genoa"),
        ("snp/trustee_test-vcek.der", "snp/virtee_cert_chain_milan", "Milan"),
    ],
)
def test_keys_of_every_product_lead_to_its_root(
    key: str, chain: str, product: str
) -> None:
    leaf = parse_certificates(vector(key))[0]
    issuers = parse_certificates(vector(chain))
    path = verify_chain(leaf, issuers, [AMD_ARKS[product]], at_s=AT_S)
    assert [each.subject_name for each in path] == [
        "SEV-VCEK", f"SEV-{product}", f"ARK-{product}",
    ]  # fmt: skip
    endorsement = parse_endorsement(leaf)
    assert (endorsement.product, endorsement.operator) == (product, "")
    assert len(endorsement.chip_id) == 64


def test_a_chip_id_of_turin_is_short() -> None:
    leaf = Certificate(vector("snp/virtee_vcek_turin.der"))
    endorsement = parse_endorsement(leaf)
    assert endorsement.chip_id == bytes.fromhex("1e550a8ee5cf9f4d").ljust(64, b"\0")
    assert endorsement.tcb.microcode == 9


@pytest.mark.parametrize("name", ALL)
def test_every_byte_of_a_report_is_covered(name: str) -> None:
    genuine = report_of(ALL[name])
    key = Certificate(certificates_of(ALL[name])[0]).key()
    assert isinstance(key, EcdsaKey)
    genuine.verify_signature(key)
    chance = Random(name)
    for at in range(len(genuine.raw)):
        changed = flipped(genuine.raw, at, chance)
        with pytest.raises((EvidenceError, MalformedError)):
            parse_report(changed).verify_signature(key)


@pytest.mark.parametrize("name", ["vcek", "vlek"])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["key", "issuer", "root"])
def test_bytes_of_certificates_are_covered(name: str, place: int) -> None:
    certificates = list(certificates_of(ALL[name]))
    chance = Random(f"{name} {place}")
    for at in chance.sample(range(len(certificates[place])), SAMPLE):
        changed = [*certificates]
        changed[place] = flipped(certificates[place], at, chance)
        with pytest.raises((EvidenceError, MalformedError)):
            examine(ALL[name], certificates=tuple(changed))


def test_order_and_company_of_certificates_change_no_claim() -> None:
    certificates = certificates_of(VCEK)
    stranger = vector("snp/virtee_vcek_turin.der")
    assert examine(VCEK, certificates=certificates[::-1]) == examine(VCEK)
    assert examine(VCEK, certificates=(stranger, *certificates)) == examine(VCEK)


@pytest.mark.parametrize(
    ("report", "certificates", "code"),
    [
        (VCEK, DEBUGGED, "snp-key-foreign"),
        (VLEK, VCEK, "snp-key-missing"),
        (VCEK, VLEK, "snp-key-missing"),
    ],
)
def test_certificates_of_another_key(
    report: SnpVector, certificates: SnpVector, code: str
) -> None:
    with pytest.raises(EvidenceError) as caught:
        examine(report, certificates=certificates_of(certificates))
    assert caught.value.code == code


def test_bound_to_something_else() -> None:
    with pytest.raises(EvidenceError) as caught:
        require_passed(examine(VCEK, bound=bytes(32)).checks)
    assert caught.value.code == "evidence-unbound"


def flipped(raw: bytes, at: int, chance: Random) -> bytes:
    changed = bytearray(raw)
    changed[at] ^= chance.randrange(1, 256)
    return bytes(changed)
