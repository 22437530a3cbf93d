"""Whatever bytes come: NVIDIA's formats raise what verifiers may raise, and no else."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.nvidia.evidence import MEDIA_TYPE, NvidiaBody, parse_report
from sealift.attest.nvidia.rim import read_rim
from sealift.attest.nvidia.verifier import examine_nvidia
from sealift.attest.reference import AppraisalBasis, NvidiaReferences, ReferenceValues
from sealift.errors import EvidenceError, MalformedError
from sealift.ids import Digest
from tests.sim import nvidia_device as sim

REFUSED = contextlib.suppress(EvidenceError, MalformedError)
DEVICE = sim.SoftDevice("switch", "LS10")
REPORT = DEVICE.report(bytes(32))
RIM = sim.sign_rim(sim.rim_document("1", {0: (bytes(48),)}))
REFERENCES = ReferenceValues(nvidia=NvidiaReferences(drivers=(), vbios=()))


@st.composite
def spoilt(draw: st.DrawFn, raw: bytes) -> bytes:
    """The bytes with a piece replaced, removed or repeated."""
    start = draw(st.integers(0, len(raw)))
    end = draw(st.integers(start, min(len(raw), start + 64)))
    return raw[:start] + draw(st.binary(max_size=64)) + raw[end:]


@given(st.binary(max_size=600) | spoilt(REPORT))
def test_reports(raw: bytes) -> None:
    with REFUSED:
        parse_report(raw)


@given(st.binary(max_size=600) | spoilt(RIM))
def test_manifests(raw: bytes) -> None:
    with REFUSED:
        read_rim(raw, roots=(sim.rim_chain()[-1].spki_digest,), at_s=sim.AT_S)


@given(st.text(alphabet='<>/&;"= abns:0\n\x01é', max_size=200))
def test_xml_like_text(text: str) -> None:
    with REFUSED:
        read_rim(text.encode(), roots=(Digest(bytes(32)),), at_s=0)


@given(spoilt(REPORT) | st.just(REPORT), st.integers(0, 4), st.data())
def test_evidence(report: bytes, place: int, data: st.DataObject) -> None:
    certificates = list(DEVICE.certificates)
    certificates[place] = data.draw(spoilt(certificates[place]))
    body = NvidiaBody(report=report, certificates=tuple(certificates))
    examine(body.to_evidence())


@given(st.binary(max_size=300))
def test_bodies(raw: bytes) -> None:
    examine(Evidence(NvidiaBody.kind, MEDIA_TYPE, raw))


def examine(evidence: Evidence) -> None:
    with REFUSED:
        examine_nvidia(
            evidence,
            AppraisalBasis(
                bound=bytes(32),
                references=REFERENCES,
                collateral=Collateral(as_of_s=sim.AT_S),
                at_s=sim.AT_S,
            ),
        )
