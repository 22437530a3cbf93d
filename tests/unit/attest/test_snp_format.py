"""Layout of SNP reports, on reports of ours: what does not parse, and what fields say."""

from __future__ import annotations

import pytest

from sealift.attest.snp.evidence import parse_report, parse_tcb, product_of
from sealift.errors import MalformedError
from tests.sim import snp_made as made


@pytest.mark.parametrize("version", [0, 1, 6])
def test_other_versions(version: int) -> None:
    with pytest.raises(MalformedError, match="version"):
        parse_report(made.report(version=version))


@pytest.mark.parametrize("at", [0x4C, 0x18B, 0x19F, 0x1EB, 0x1EF, 0x208, 0x29F])
@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_reserved_bytes(at: int, version: int) -> None:
    _require_malformed(made.report(version=version), at)


@pytest.mark.parametrize(
    ("version", "at"),
    [(2, 0x188), (2, 0x18A), (2, 0x1F8), (3, 0x1F8), (4, 0x207), (3, 0x49)],
)
def test_bytes_that_later_versions_use(version: int, at: int) -> None:
    _require_malformed(made.report(version=version), at)


@pytest.mark.parametrize("at", [0x2A0 + 48, 0x2A0 + 143, 0x330, 1183])
def test_bytes_behind_the_signature(at: int) -> None:
    _require_malformed(made.vcek("Milan").sign(made.report()), at)


@pytest.mark.parametrize("key", [2, 3, 4, 5, 6])
def test_unknown_signing_keys(key: int) -> None:
    with pytest.raises(MalformedError, match="flags"):
        parse_report(made.report(flags=key << 2))


def test_policy_without_the_bit_that_must_be_one() -> None:
    with pytest.raises(MalformedError, match="bit 17"):
        parse_report(made.report(policy=0x1001F))


def test_reserved_bytes_of_a_tcb() -> None:
    for product, at in (("Milan", 2), ("Genoa", 5), ("Turin", 4)):
        raw = bytearray(8)
        raw[at] = 1
        with pytest.raises(MalformedError):
            parse_tcb(bytes(raw), product)


def test_layouts_differ() -> None:
    raw = bytes((1, 2, 3, 4, 0, 0, 0, 5))
    turin = parse_tcb(raw, "Turin")
    assert (turin.fmc, turin.boot_loader, turin.tee, turin.snp) == (1, 2, 3, 4)
    with pytest.raises(MalformedError):
        parse_tcb(raw, "Milan")


def test_facts_of_version_5() -> None:
    report = parse_report(made.report("Turin", 5))
    assert report.mitigations == (1, 0)
    assert report.product == "Turin"
    assert parse_report(made.report(version=3)).mitigations is None


@pytest.mark.parametrize(
    ("family", "model", "product"),
    [(0x19, 0x01, "Milan"), (0x19, 0x11, "Genoa"), (0x19, 0xA0, "Genoa"),
     (0x1A, 0x02, "Turin"), (0x19, 0x21, ""), (0x1A, 0x50, ""), (0x17, 0x01, "")],
)  # fmt: skip
def test_products(family: int, model: int, product: str) -> None:
    assert product_of(family, model) == product


def _require_malformed(raw: bytes, at: int) -> None:
    parse_report(raw)
    changed = bytearray(raw)
    changed[at] |= 0x80
    with pytest.raises(MalformedError):
        parse_report(bytes(changed))
