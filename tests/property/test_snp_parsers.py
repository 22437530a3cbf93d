"""SNP parsers and verifier on bytes that nobody meant: only our errors ever leave."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.reference import AppraisalBasis
from sealift.attest.snp.endorsement import (
    parse_certificates,
    parse_endorsement,
    parse_table,
)
from sealift.attest.snp.evidence import (
    MEDIA_TYPE,
    REPORT_BYTES,
    SnpBody,
    parse_report,
    parse_tcb,
)
from sealift.attest.snp.verifier import examine_snp
from sealift.crypto.certificate import Certificate
from sealift.errors import EvidenceError, MalformedError
from tests.sim import snp_made as made
from tests.sim.examples import examples

EXPECTED = (EvidenceError, MalformedError)
CHANGES = st.lists(
    st.tuples(st.integers(0, REPORT_BYTES - 1), st.integers(0, 255)), max_size=8
)


def changed(raw: bytes, changes: list[tuple[int, int]]) -> bytes:
    result = bytearray(raw)
    for at, value in changes:
        result[at % len(raw)] = value
    return bytes(result)


@given(raw=st.binary(max_size=2 * REPORT_BYTES))
def test_any_report(raw: bytes) -> None:
    with contextlib.suppress(*EXPECTED):
        parse_report(raw)


@given(changes=CHANGES, version=st.integers(2, 5))
def test_nearly_a_report(changes: list[tuple[int, int]], version: int) -> None:
    with contextlib.suppress(*EXPECTED):
        report = parse_report(changed(made.report(version=version), changes))
        parse_tcb(report.reported_tcb, report.product)


@given(changes=CHANGES)
def test_nearly_a_certificate(changes: list[tuple[int, int]]) -> None:
    with contextlib.suppress(*EXPECTED):
        certificate = Certificate(changed(made.vcek("Milan").certificate, changes))
        parse_endorsement(certificate)


@given(raw=st.binary(max_size=600))
def test_any_table_and_any_collateral(raw: bytes) -> None:
    with contextlib.suppress(*EXPECTED):
        parse_table(raw)
    with contextlib.suppress(*EXPECTED):
        parse_certificates(raw)


@examples(50)
@given(changes=CHANGES, which=st.integers(0, 3))
def test_nearly_evidence(changes: list[tuple[int, int]], which: int) -> None:
    authority, signer = made.authority("Milan"), made.vcek("Milan")
    parts = [signer.sign(made.report()), signer.certificate,
             authority.der("ask"), authority.der("ark")]  # fmt: skip
    parts[which] = changed(parts[which], changes)
    body = SnpBody(report=parts[0], certificates=tuple(parts[1:]))
    _examine(body.to_evidence())


@given(body=st.binary(max_size=300))
def test_any_body(body: bytes) -> None:
    _examine(Evidence(SnpBody.kind, MEDIA_TYPE, body))


def test_a_table_gives_its_certificates() -> None:
    certificate = made.authority("Milan").der("ark")
    other = b"not a certificate"
    start = 3 * 24
    entries = [(b"\1" * 16, start, len(certificate)),
               (b"\2" * 16, start + len(certificate), len(other))]  # fmt: skip
    head = b"".join(
        name + at.to_bytes(4, "little") + size.to_bytes(4, "little")
        for name, at, size in entries
    )
    table = head + bytes(24) + certificate + other
    assert parse_table(table) == (certificate,)


def _examine(evidence: Evidence) -> None:
    authority = made.authority("Milan")
    with contextlib.suppress(*EXPECTED):
        examine_snp(
            evidence,
            AppraisalBasis(
                bound=made.BOUND,
                references=made.references(),
                collateral=Collateral(items=authority.collateral().items),
                at_s=made.AT_S,
            ),
            authority.roots,
        )
