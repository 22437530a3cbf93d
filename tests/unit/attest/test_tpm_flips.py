"""Every byte of TPM evidence that something covers: changed, it is refused.

What nothing covers stands in spec/evidence-tpm.md; changing it never changes a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sealift import codec
from sealift.attest import Evidence, ReferenceValues
from sealift.attest.runtimelog import CODE_BUNDLE, MODULE, RuntimeEvent
from sealift.attest.tpm.evidence import MEDIA_TYPE, TpmBody
from sealift.attest.verifier import Claims
from sealift.errors import SealiftError
from tests.sim.flips import flips
from tests.sim.tpmhost import examine, failed, tpm_host

pytestmark = pytest.mark.swtpm
Change = Callable[[TpmBody, bytes], TpmBody]


@pytest.fixture(scope="module")
def scene() -> Iterator[tuple[TpmBody, ReferenceValues]]:
    with tpm_host() as host:
        host.attester.measure(RuntimeEvent(CODE_BUNDLE, bytes(32)))
        host.attester.measure(RuntimeEvent(MODULE, b"sealift.attest"))
        yield TpmBody.parse(host.evidence().body), host.references()


def verdict(body: TpmBody, references: ReferenceValues) -> Claims | None:
    """Claims without a failed check, or None for a refusal."""
    evidence = Evidence(TpmBody.kind, MEDIA_TYPE, codec.encode(body))
    try:
        claims = examine(evidence, references)
    except SealiftError:
        return None
    return None if failed(claims) else claims


def set_certificate(place: int) -> Change:
    def change(body: TpmBody, raw: bytes) -> TpmBody:
        before, after = body.certificates[:place], body.certificates[place + 1 :]
        return replace(body, certificates=(*before, raw, *after))

    return change


def set_enrolment(body: TpmBody, raw: bytes) -> TpmBody:
    return replace(body, enrolments=(replace(body.enrolments[0], signature=raw),))


def set_event(body: TpmBody, raw: bytes) -> TpmBody:
    return replace(body, events=(body.events[0], replace(body.events[1], content=raw)))


def set_register(number: str) -> Change:
    def change(body: TpmBody, raw: bytes) -> TpmBody:
        return replace(body, pcrs={"sha256": {**body.pcrs["sha256"], number: raw}})

    return change


FIELDS: dict[str, tuple[Callable[[TpmBody], bytes], Change]] = {
    "quote": (lambda b: b.quote, lambda b, raw: replace(b, quote=raw)),
    "signature": (lambda b: b.signature, lambda b, raw: replace(b, signature=raw)),
    "attestation key": (
        lambda b: b.attestation_key,
        lambda b, raw: replace(b, attestation_key=raw),
    ),
    "endorsement certificate": (lambda b: b.certificates[0], set_certificate(0)),
    "issuer": (lambda b: b.certificates[1], set_certificate(1)),
    "enrolment": (lambda b: b.enrolments[0].signature, set_enrolment),
    "runtime event": (lambda b: b.events[1].content, set_event),
    "PCR 0": (lambda b: b.pcrs["sha256"]["0"], set_register("0")),
    "PCR 10": (lambda b: b.pcrs["sha256"]["10"], set_register("10")),
    "PCR 15": (lambda b: b.pcrs["sha256"]["15"], set_register("15")),
}


@pytest.mark.parametrize("name", FIELDS)
def test_changed_byte_is_refused(
    scene: tuple[TpmBody, ReferenceValues], name: str
) -> None:
    body, references = scene
    read, change = FIELDS[name]
    for place, raw in flips(read(body)):
        assert verdict(change(body, raw), references) is None, place


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("edit", [lambda raw: raw + b"\0", lambda raw: raw[:-1]])
def test_other_length_is_refused(
    scene: tuple[TpmBody, ReferenceValues], name: str, edit: Callable[[bytes], bytes]
) -> None:
    body, references = scene
    read, change = FIELDS[name]
    assert verdict(change(body, edit(read(body))), references) is None


def test_unchanged_evidence_passes(scene: tuple[TpmBody, ReferenceValues]) -> None:
    """Control of the two tests above: taking apart and joining changes nothing."""
    body, references = scene
    for read, change in FIELDS.values():
        assert verdict(change(body, read(body)), references) is not None


def test_only_recorded_hashes_of_the_list_are_not_covered(
    scene: tuple[TpmBody, ReferenceValues],
) -> None:
    body, references = scene
    right = verdict(body, references)
    ignored = set()
    for place, raw in flips(body.ima_list, sample=len(body.ima_list)):
        claims = verdict(replace(body, ima_list=raw), references)
        if claims is not None:
            assert claims == right
            ignored.add(place)
    assert ignored == set(recorded_hashes(body.ima_list))


def recorded_hashes(ima_list: bytes) -> Iterator[int]:
    """Offsets of the SHA-1 values that the list repeats beside each entry."""
    at = 0
    while at < len(ima_list):
        yield from range(at + 4, at + 24)
        at += 28 + int.from_bytes(ima_list[at + 24 : at + 28], "little")
        at += 4 + int.from_bytes(ima_list[at : at + 4], "little")


def test_what_is_not_needed_changes_no_claim(
    scene: tuple[TpmBody, ReferenceValues],
) -> None:
    """More certificates, more enrolments: a chain is found, or it is not."""
    body, references = scene
    right = verdict(body, references)
    stranger = replace(
        body.enrolments[0],
        enrolment=replace(body.enrolments[0].enrolment, attestation_key=b"other"),
    )
    for more in (
        replace(body, enrolments=(stranger, *body.enrolments)),
        replace(body, certificates=(*body.certificates, body.certificates[0])),
    ):
        assert verdict(more, references) == right
