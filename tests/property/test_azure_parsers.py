"""Azure's parsers and verifier on bytes that nobody meant: only our errors ever leave."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sealift.attest.azure.evidence import MEDIA_TYPE, AzureBody, parse_claims, parse_hcl
from sealift.attest.azure.verifier import examine_azure
from sealift.attest.evidence import Evidence
from sealift.attest.reference import AppraisalBasis
from sealift.errors import EvidenceError, MalformedError
from tests.sim import azure_made as made
from tests.sim import snp_made
from tests.sim.examples import examples

EXPECTED = (EvidenceError, MalformedError)
CHANGES = st.lists(st.tuples(st.integers(0, 2599), st.integers(0, 255)), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["keys", "kid", "kty", "n", "e", "user-data", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


def changed(raw: bytes, changes: list[tuple[int, int]]) -> bytes:
    result = bytearray(raw)
    for at, value in changes:
        result[at % len(raw)] = value
    return bytes(result)


@given(raw=st.binary(max_size=4000), text=st.binary(max_size=200))
def test_any_report_and_any_claims(raw: bytes, text: bytes) -> None:
    with contextlib.suppress(*EXPECTED):
        parse_hcl(raw)
    with contextlib.suppress(*EXPECTED):
        parse_hcl(made.pack_hcl(raw[:1184].ljust(1184), text))
    with contextlib.suppress(*EXPECTED):
        parse_claims(text)


@given(keys=JSON, machine=JSON, user_data=JSON)
def test_any_json(keys: object, machine: object, user_data: object) -> None:
    parts = {"keys": keys, "vm-configuration": machine, "user-data": user_data}
    with contextlib.suppress(*EXPECTED):
        parse_claims(made.claims_text(**parts))
    with contextlib.suppress(*EXPECTED):
        parse_claims(made.claims_text(**{"vm-configuration": machine}))


@examples(50)
@given(
    changes=CHANGES,
    part=st.sampled_from(["hcl_report", "quote", "signature", "event_log", "td_quote"]),
)
def test_nearly_evidence(changes: list[tuple[int, int]], part: str) -> None:
    body = made.Guest().evidence_body()
    raw = changed(getattr(body, part) or bytes(100), changes)
    _examine(replace(body, **{part: raw}).to_evidence())


@given(body=st.binary(max_size=300))
def test_any_body(body: bytes) -> None:
    _examine(Evidence(AzureBody.kind, MEDIA_TYPE, body))


def _examine(evidence: Evidence) -> None:
    authority = snp_made.authority("Milan")
    with contextlib.suppress(*EXPECTED):
        examine_azure(
            evidence,
            AppraisalBasis(
                bound=made.BOUND,
                references=made.Guest().references(),
                collateral=authority.collateral(),
                at_s=snp_made.AT_S,
            ),
            authority.roots,
        )
