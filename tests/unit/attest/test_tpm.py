"""TPM evidence from a real software TPM: the whole path, and every way it can fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from sealift.attest import Evidence, Level, ReferenceValues, Tier
from sealift.attest.collateral import Collateral
from sealift.attest.reference import ImaReferences
from sealift.attest.runtimelog import CODE_BUNDLE, MODULE, RuntimeEvent
from sealift.attest.tpm.evidence import (
    ClockInfo,
    TpmBody,
)
from sealift.attest.tpm.verifier import (
    LOADER_PCRS,
    REQUIRED_PCRS,
    check_clock,
    check_registers,
)
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    EvidenceError,
    MalformedError,
    PolicyError,
)
from sealift.ids import Digest
from tests.sim.tpmhost import (
    AGENT,
    BOUND,
    appraiser,
    changed,
    examine,
    failed,
    tpm_host,
)

pytestmark = pytest.mark.swtpm
BUNDLE = Digest.of(b"bundle")


@dataclass(frozen=True)
class Scene:
    """One host's evidence and what it is judged by; nothing in it changes."""

    evidence: Evidence
    references: ReferenceValues
    owner: SigningKey
    other: Evidence
    other_references: ReferenceValues


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with tpm_host() as host, tpm_host(1) as other:
        host.attester.measure(RuntimeEvent(CODE_BUNDLE, BUNDLE.raw))
        host.attester.measure(RuntimeEvent(MODULE, b"sealift"))
        yield Scene(
            host.evidence(),
            replace(host.references(), code_bundle=BUNDLE),
            host.owner,
            other.evidence(),
            other.references(),
        )


def with_tpm(references: ReferenceValues, **changes: object) -> ReferenceValues:
    assert references.tpm is not None
    return replace(references, tpm=replace(references.tpm, **changes))  # type: ignore[arg-type]


def with_pcrs(
    references: ReferenceValues, pcrs: dict[str, tuple[bytes, ...]]
) -> ReferenceValues:
    assert references.tpm is not None
    return with_tpm(references, pcrs={**references.tpm.pcrs, **pcrs})


def test_enrolled_host_rehearses_an_attested_host(scene: Scene) -> None:
    claims = examine(scene.evidence, scene.references)
    assert failed(claims) == set()
    result = appraiser(scene.references).appraise(scene.evidence, BOUND)
    assert result.standing == "development (rehearsing attested-host)"
    assert result.tier is Tier.CONTRAINDICATED
    assert claims.code_bundle == BUNDLE
    assert [each.kind for each in claims.events] == [CODE_BUNDLE, MODULE]
    assert claims.attester.startswith("tpm:000b")
    assert "software certified" in claims.notes[0]


def test_software_tpm_stays_development_whatever_its_root_is_called(
    scene: Scene,
) -> None:
    """Rule H11: the endorsement certificate itself says what it certifies."""
    assert scene.references.tpm is not None
    (root,) = scene.references.tpm.roots
    called = with_tpm(scene.references, roots=(replace(root, operator="hardware"),))
    claims = examine(scene.evidence, called)
    assert claims.level is Level.DEVELOPMENT
    with pytest.raises(PolicyError, match="development evidence"):
        appraiser(called, accept=(Level.ATTESTED_HOST,), rehearse=None).appraise(
            scene.evidence, BOUND
        )


@pytest.mark.parametrize(
    ("operator", "trusted"), [("hardware", False), ("virtual", True)]
)
def test_vendor_root_gives_the_level(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, operator: str, trusted: bool
) -> None:
    """As the same TPM would be judged if its certificate did not name a program."""
    monkeypatch.setattr("sealift.attest.tpm.enrolment.says_software", lambda _: False)
    assert scene.references.tpm is not None
    (root,) = scene.references.tpm.roots
    called = with_tpm(scene.references, roots=(replace(root, operator=operator),))
    result = appraiser(called, accept=(Level.ATTESTED_HOST,), rehearse=None).appraise(
        scene.evidence, BOUND
    )
    assert result.standing == "attested-host"
    assert any("read its memory" in note for note in result.claims.notes)
    assert trusted == any("trusted as well" in note for note in result.claims.notes)


def test_no_reference_values_no_evidence(scene: Scene) -> None:
    with pytest.raises(PolicyError) as caught:
        examine(scene.evidence, replace(scene.references, tpm=None))
    assert caught.value.code == "references-missing"


def test_other_challenge_is_refused(scene: Scene) -> None:
    with pytest.raises(EvidenceError) as caught:
        appraiser(scene.references).appraise(scene.evidence, bytes(32))
    assert caught.value.code == "evidence-unbound"
    assert failed(examine(scene.evidence, scene.references, bound=None)) == {
        "evidence-unbound"
    }


def test_other_host_is_refused(scene: Scene) -> None:
    """A clean machine by the same maker, enrolled by the same owner."""
    references = replace(scene.references, enrollers=scene.other_references.enrollers)
    claims = examine(scene.other, references)
    assert "tpm-other-host" in failed(claims)


def test_enrolment_by_a_stranger_does_not_count(scene: Scene) -> None:
    stranger = SigningKey.generate().public_key
    with pytest.raises(EvidenceError) as caught:
        examine(scene.evidence, replace(scene.references, enrollers=(stranger,)))
    assert caught.value.code == "tpm-not-enrolled"


def test_enrolment_in_anothers_name_is_refused(scene: Scene) -> None:
    def forge(body: TpmBody) -> TpmBody:
        forged = replace(body.enrolments[0], signature=bytes(64))
        return replace(body, enrolments=(forged,))

    with pytest.raises(EvidenceError, match="not genuine") as caught:
        examine(changed(scene.evidence, forge), scene.references)
    assert caught.value.code == "tpm-not-enrolled"


def test_key_of_another_tpm_is_refused(scene: Scene) -> None:
    """The other TPM's quote behind this TPM's certificate and enrolment."""

    def graft(body: TpmBody) -> TpmBody:
        taken: list[TpmBody] = []
        changed(scene.other, lambda other: taken.append(other) or other)  # type: ignore[func-returns-value]
        return replace(
            taken[0], certificates=body.certificates, enrolments=body.enrolments
        )

    with pytest.raises(EvidenceError) as caught:
        examine(changed(scene.evidence, graft), scene.references)
    assert caught.value.code == "tpm-not-enrolled"


def test_root_of_another_maker_is_refused(scene: Scene) -> None:
    assert scene.references.tpm is not None
    (root,) = scene.references.tpm.roots
    other = replace(root, key=Digest.of(b"another maker"))
    with pytest.raises(EvidenceError) as caught:
        examine(scene.evidence, with_tpm(scene.references, roots=(other,)))
    assert caught.value.code == "chain-root"


def test_expired_certificate_is_refused(scene: Scene) -> None:
    with pytest.raises(EvidenceError) as caught:
        examine(scene.evidence, scene.references, at_s=0)
    assert caught.value.code == "chain-expired"


def test_issuers_may_come_from_our_side(scene: Scene) -> None:
    kept: list[TpmBody] = []

    def strip(body: TpmBody) -> TpmBody:
        kept.append(body)
        return replace(body, certificates=body.certificates[:1])

    evidence = changed(scene.evidence, strip)
    with pytest.raises(EvidenceError) as caught:
        examine(evidence, scene.references)
    assert caught.value.code == "chain-broken"
    items = {f"tpm/issuer/{i}": c for i, c in enumerate(kept[0].certificates[1:])}
    claims = examine(evidence, scene.references, collateral=Collateral(items=items))
    assert failed(claims) == set()


def test_evidence_without_certificate_is_refused(scene: Scene) -> None:
    bare = changed(scene.evidence, lambda body: replace(body, certificates=()))
    with pytest.raises(EvidenceError) as caught:
        examine(bare, scene.references)
    assert caught.value.code == "tpm-no-endorsement"


def test_issuer_is_no_endorsement_key(scene: Scene) -> None:
    """A maker's own certificate must not stand for one of its TPMs."""
    shifted = changed(
        scene.evidence, lambda body: replace(body, certificates=body.certificates[1:])
    )
    with pytest.raises(EvidenceError) as caught:
        examine(shifted, scene.references)
    assert caught.value.code == "tpm-no-endorsement"


def test_changed_register_is_not_the_quoted_one(scene: Scene) -> None:
    def change(body: TpmBody) -> TpmBody:
        return replace(body, pcrs={"sha256": {**body.pcrs["sha256"], "4": b"\1" * 32}})

    with pytest.raises(EvidenceError) as caught:
        examine(changed(scene.evidence, change), scene.references)
    assert caught.value.code == "tpm-pcr-digest"


@pytest.mark.parametrize(
    "pcrs",
    [
        {"sha256": {}},
        {},
        {"sha1": {}},
        {"sha256": {str(n): bytes(32) for n in range(24)}},
        {"sha256": {str(n): bytes(31) for n in range(16)}},
    ],
)
def test_registers_are_exactly_the_quoted_ones(
    scene: Scene, pcrs: dict[str, dict[str, bytes]]
) -> None:
    evidence = changed(scene.evidence, lambda body: replace(body, pcrs=pcrs))
    with pytest.raises(MalformedError):
        examine(evidence, scene.references)


def test_register_with_another_value_is_refused(scene: Scene) -> None:
    references = with_pcrs(scene.references, {"7": (b"\1" * 32,)})
    assert failed(examine(scene.evidence, references)) == {"tpm-pcr"}
    both = with_pcrs(scene.references, {"7": (b"\1" * 32, bytes(32))})
    assert failed(examine(scene.evidence, both)) == set()


@pytest.mark.parametrize("number", LOADER_PCRS)
def test_what_a_loader_measured_beside_the_image_is_pinned(
    scene: Scene, number: int
) -> None:
    assert scene.references.tpm is not None
    tpm = scene.references.tpm
    assert str(number) not in tpm.pcrs
    values = {n: bytes(32) for n in range(16)}
    assert all(each.passed for each in check_registers(values, tpm))
    other = {**values, number: b"a command line without IMA".ljust(32)}
    found = [each.subject for each in check_registers(other, tpm) if not each.passed]
    assert found == [f"PCR {number}"]
    named = replace(tpm, pcrs={**tpm.pcrs, str(number): (other[number],)})
    assert all(each.passed for each in check_registers(other, named))
    del other[number]
    assert not all(each.passed for each in check_registers(other, tpm))


def test_register_that_is_not_quoted_is_refused(scene: Scene) -> None:
    references = with_pcrs(scene.references, {"17": (b"\xff" * 32,)})
    assert failed(examine(scene.evidence, references)) == {"tpm-pcr"}


@pytest.mark.parametrize("number", REQUIRED_PCRS)
def test_boot_that_is_not_pinned_is_refused(scene: Scene, number: int) -> None:
    """An open register would let a host boot without measuring what it runs."""
    assert scene.references.tpm is not None
    pcrs = {n: v for n, v in scene.references.tpm.pcrs.items() if n != str(number)}
    (check,) = (
        each
        for each in examine(
            scene.evidence, with_tpm(scene.references, pcrs=pcrs)
        ).checks
        if not each.passed
    )
    assert (check.subject, check.expected) == (f"PCR {number}", "no value is allowed")


def test_unlisted_program_is_refused(scene: Scene) -> None:
    references = with_tpm(scene.references, ima=ImaReferences(allow={}, must=(AGENT,)))
    codes = failed(examine(scene.evidence, references))
    assert len(codes) == 1
    assert codes.pop().startswith("ima-")


def test_without_knowing_what_may_run_no_host_is_taken(scene: Scene) -> None:
    references = with_tpm(scene.references, ima=None)
    assert failed(examine(scene.evidence, references)) == {"tpm-ima-list"}


def test_list_with_a_gap_is_refused(scene: Scene) -> None:
    gap = changed(scene.evidence, lambda body: replace(body, ima_from=1))
    assert failed(examine(gap, scene.references)) == {"tpm-ima-list"}


def test_altered_runtime_log_is_refused(scene: Scene) -> None:
    for events in ((), (RuntimeEvent(CODE_BUNDLE, BUNDLE.raw),)):
        cut = changed(scene.evidence, lambda b, e=events: replace(b, events=e))  # type: ignore[misc]
        assert "tpm-runtime-log" in failed(examine(cut, scene.references))


@pytest.mark.parametrize("number", [16, 20, 21, 22, 23])
def test_resettable_register_carries_no_runtime_log(scene: Scene, number: int) -> None:
    with pytest.raises(MalformedError, match="reset it"):
        examine(scene.evidence, with_tpm(scene.references, register=number))


def test_other_code_bundle_is_refused(scene: Scene) -> None:
    references = replace(scene.references, code_bundle=Digest.of(b"other"))
    assert failed(examine(scene.evidence, references)) == {"code-bundle-differs"}


def test_unsafe_clock_is_refused() -> None:
    assert check_clock(ClockInfo(1, 1, 1, True)).passed
    assert check_clock(ClockInfo(1, 1, 1, False)).code == "tpm-clock-unsafe"


def test_renewal_by_another_host_is_refused(scene: Scene) -> None:
    judge = appraiser(scene.references)
    first = judge.appraise(scene.evidence, BOUND)
    assert scene.references.tpm is not None
    assert scene.other_references.tpm is not None
    both = replace(
        scene.references,
        enrollers=scene.other_references.enrollers,
        tpm=scene.other_references.tpm,
    )
    with pytest.raises(EvidenceError) as caught:
        appraiser(both).appraise(scene.other, BOUND, first)
    assert caught.value.code == "tpm-other-attester"
