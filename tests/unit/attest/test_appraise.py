"""Appraisal with a made-up kind of evidence beside development evidence.

The made-up kind stands for a TPM or a TEE: it shows that new kinds plug in by media
type, and that the decisions around them are the same.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from sealift import codec
from sealift.attest import (
    Appraiser,
    AttestationResult,
    Claims,
    Evidence,
    Level,
    ReferenceValues,
    Tier,
)
from sealift.attest.development import (
    MEDIA_TYPE,
    DevelopmentAttester,
    DevelopmentBody,
)
from sealift.attest.level import TrustVector
from sealift.attest.policy import APPRAISED, VERIFIER_FOR_MEDIA_TYPE
from sealift.attest.reference import AppraisalBasis
from sealift.attest.runtimelog import RuntimeEvent, module_event
from sealift.attest.verifier import VerifierKind
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    AuthenticationError,
    EvidenceError,
    MalformedError,
    PolicyError,
    SealiftError,
    UsageError,
)
from sealift.ids import Digest, Role
from tests.sim.kinds import loaded

BOUND = bytes(range(32))
BUNDLE = Digest.of(b"code")
GENUINE = TrustVector(hardware=2, runtime_opaque=2)


TEE = "application/vnd.example.tee"


def rehearsed(
    trust: TrustVector = GENUINE,
    events: tuple[RuntimeEvent, ...] = (),
    level: Level = Level.TEE,
    levels: frozenset[Level] = frozenset({Level.TEE, Level.DEVELOPMENT}),
) -> VerifierKind:
    """Reads evidence whose body is the bound value."""

    def examine(evidence: Evidence, basis: AppraisalBasis) -> Claims:
        if evidence.body != basis.bound:
            raise EvidenceError("unbound")
        return Claims(level=level, attester="chip-1", trust=trust, events=events)

    return VerifierKind(levels, lambda: examine)


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def evidence(key: SigningKey) -> Evidence:
    attester = DevelopmentAttester(key, role=Role.ACCELERATOR, code_bundle=BUNDLE)
    return attester.collect(BOUND)


def references(key: SigningKey, code_bundle: Digest | None = BUNDLE) -> ReferenceValues:
    return ReferenceValues(
        development_attesters=(key.public_key,), code_bundle=code_bundle
    )


def try_appraise(
    evidence: Evidence,
    key: SigningKey,
    *,
    bound: bytes = BOUND,
    accept: tuple[Level, ...] = (Level.DEVELOPMENT,),
    code_bundle: Digest | None = BUNDLE,
) -> AttestationResult:
    ours = Appraiser(accept=accept, references=references(key, code_bundle))
    return ours.appraise(evidence, bound)


def test_development_result_is_contraindicated_and_marked(
    evidence: Evidence, key: SigningKey
) -> None:
    result = try_appraise(evidence, key)
    assert result.level is Level.DEVELOPMENT
    assert result.tier is Tier.CONTRAINDICATED
    assert result.media_type == "application/vnd.sealift.development-result+json"
    assert result.claims.role == "accelerator"
    assert result.summary()["level"] == "development"
    assert result.summary()["code_bundle"] == BUNDLE.to_text()


@pytest.mark.parametrize(
    "accept",
    [
        (Level.TEE,),
        (Level.GPU_TEE, Level.TEE),
        (Level.ATTESTED_HOST,),
        (Level.UNTRUSTED_GPU,),
    ],
)
def test_development_is_refused_unless_asked_for(
    evidence: Evidence, key: SigningKey, accept: tuple[Level, ...]
) -> None:
    with pytest.raises(PolicyError) as refusal:
        try_appraise(evidence, key, accept=accept)
    assert refusal.value.code == "development-refused"


def test_refused_kinds_are_not_parsed(key: SigningKey) -> None:
    garbage = Evidence("development", MEDIA_TYPE, b"not json")
    with pytest.raises(PolicyError):
        try_appraise(garbage, key, accept=(Level.TEE,))
    with pytest.raises(MalformedError):  # control: it is parsed where accepted
        try_appraise(garbage, key)


def test_empty_accept_accepts_nothing(evidence: Evidence, key: SigningKey) -> None:
    with pytest.raises(MalformedError):
        try_appraise(evidence, key, accept=())


def test_unknown_kind(key: SigningKey) -> None:
    with pytest.raises(EvidenceError) as refusal:
        try_appraise(Evidence("other", "application/vnd.other", b""), key)
    assert refusal.value.code == "evidence-unknown-kind"


def test_bound_to_something_else(evidence: Evidence, key: SigningKey) -> None:
    with pytest.raises(EvidenceError) as refusal:
        try_appraise(evidence, key, bound=bytes(32))
    assert refusal.value.code == "evidence-unbound"


def test_attester_that_nobody_named(evidence: Evidence) -> None:
    with pytest.raises(EvidenceError) as refusal:
        try_appraise(evidence, SigningKey.generate())
    assert refusal.value.code == "attester-unknown"


def test_other_code(evidence: Evidence, key: SigningKey) -> None:
    with pytest.raises(PolicyError) as refusal:
        try_appraise(evidence, key, code_bundle=Digest.of(b"other"))
    assert refusal.value.code == "code-bundle-differs"
    assert try_appraise(evidence, key, code_bundle=None).claims.code_bundle == BUNDLE


def test_any_changed_byte_is_refused(evidence: Evidence, key: SigningKey) -> None:
    for position in range(len(evidence.body)):
        changed = bytearray(evidence.body)
        changed[position] ^= 1
        with pytest.raises(SealiftError):
            try_appraise(replace(evidence, body=bytes(changed)), key)


def test_changed_claims_do_not_verify(evidence: Evidence, key: SigningKey) -> None:
    body = DevelopmentBody.parse(evidence.body)
    claims = replace(body.statement.claims, role="broker")
    forged = replace(body, statement=replace(body.statement, claims=claims))
    with pytest.raises(AuthenticationError):
        try_appraise(replace(evidence, body=codec.encode(forged)), key)


def rehearse(verifier: VerifierKind, *accept: Level) -> AttestationResult:
    ours = Appraiser(accept=accept, verifiers={TEE: verifier})
    return ours.appraise(Evidence("tee", TEE, BOUND), BOUND)


def test_other_kinds_plug_in() -> None:
    result = rehearse(rehearsed(), Level.GPU_TEE, Level.TEE)
    assert (result.level, result.tier) == (Level.TEE, Tier.AFFIRMING)


def test_a_tee_that_has_servers_compute_has_a_level_of_its_own() -> None:
    both = frozenset({Level.TEE, Level.UNTRUSTED_GPU})
    alone = rehearse(rehearsed(levels=both), Level.UNTRUSTED_GPU)
    assert (alone.level, alone.standing) == (Level.UNTRUSTED_GPU, "untrusted-gpu")
    within = rehearse(rehearsed(levels=both), Level.UNTRUSTED_GPU, Level.TEE)
    assert within.level is Level.TEE  # an agreement has the other one alone
    rehearsal = rehearsed(level=Level.DEVELOPMENT, levels=both)
    with pytest.raises(PolicyError):
        rehearse(rehearsal, Level.UNTRUSTED_GPU)


@pytest.mark.parametrize("kind", ["tdx", "snp", "azure"])
def test_what_evidence_a_tee_with_servers_gives(kind: str) -> None:
    media_type = f"application/vnd.sealift.{kind}-evidence+json"
    levels = VERIFIER_FOR_MEDIA_TYPE[media_type].levels
    assert levels == {Level.TEE, Level.UNTRUSTED_GPU}


def test_level_is_what_the_evidence_proved() -> None:
    rehearsal = rehearsed(level=Level.DEVELOPMENT, trust=TrustVector(hardware=97))
    with pytest.raises(PolicyError):  # a rehearsed TEE stays development (rule H11)
        rehearse(rehearsal, Level.TEE)
    assert rehearse(rehearsal, Level.DEVELOPMENT).level is Level.DEVELOPMENT


def test_real_levels_must_be_affirming() -> None:
    with pytest.raises(PolicyError) as refusal:
        rehearse(rehearsed(trust=TrustVector(hardware=32)), Level.TEE)
    assert refusal.value.code == "tier-refused"


def test_a_warning_is_taken_where_the_parties_say_so() -> None:
    """An agreement can live with a known weakness; with a contraindication never."""

    def ask(trust: TrustVector) -> AttestationResult:
        verifier = rehearsed(trust=trust)
        ours = Appraiser(
            accept=(Level.TEE,),
            references=ReferenceValues(lowest_tier="warning"),
            verifiers={TEE: verifier},
        )
        return ours.appraise(Evidence("tee", TEE, BOUND), BOUND)

    assert ask(TrustVector(hardware=32)).tier is Tier.WARNING
    for contraindicated in (96, 97, -128):
        with pytest.raises(PolicyError) as refusal:
            ask(TrustVector(hardware=contraindicated))
        assert refusal.value.code == "tier-refused"


@pytest.mark.parametrize(
    ("modules", "code"),
    [
        ({"recipe.py": b"agreed", "parts/net.py": b"net"}, ""),
        ({"recipe.py": b"altered"}, "module-foreign"),
        ({"recipe.py": b"agreed", "other.py": b"agreed"}, "module-foreign"),
    ],
)
def test_measured_modules_are_the_bundles(modules: dict[str, bytes], code: str) -> None:
    files = {"recipe.py": Digest.of(b"agreed"), "parts/net.py": Digest.of(b"net")}
    events = tuple(module_event(name, Digest.of(raw)) for name, raw in modules.items())
    verifier = rehearsed(events=events)

    def ask(code_files: dict[str, Digest] | None) -> str:
        ours = Appraiser(
            accept=(Level.TEE,),
            references=ReferenceValues(code_files=code_files),
            verifiers={TEE: verifier},
        )
        try:
            ours.appraise(Evidence("tee", TEE, BOUND), BOUND)
        except PolicyError as error:
            return error.code
        return ""

    assert ask(files) == code
    assert ask(None) == ""  # control: nothing to compare with


def test_visible_memory_is_what_an_attested_host_says() -> None:
    """Rule E9: that one claim does not count there, every other one does."""

    def host(trust: TrustVector, level: Level = Level.ATTESTED_HOST) -> object:
        return rehearse(
            rehearsed(level=level, trust=trust, levels=frozenset({level})),
            level,
        )

    host(TrustVector(hardware=2, runtime_opaque=96))
    for refused, level in (
        (TrustVector(hardware=32, runtime_opaque=96), Level.ATTESTED_HOST),
        (TrustVector(hardware=2, executables=33), Level.ATTESTED_HOST),
        (TrustVector(hardware=2, runtime_opaque=96), Level.TEE),
    ):
        with pytest.raises(PolicyError) as refusal:
            host(refused, level)
        assert refusal.value.code == "tier-refused"


def test_affirming_development_is_a_bug_not_a_result() -> None:
    with pytest.raises(UsageError, match="never be affirming"):
        rehearse(rehearsed(level=Level.DEVELOPMENT), Level.DEVELOPMENT)


def test_results_are_made_by_appraisal_only(
    evidence: Evidence, key: SigningKey
) -> None:
    result = try_appraise(evidence, key)
    with pytest.raises(UsageError):
        replace(result, token=object())  # type: ignore[arg-type]
    assert replace(result, token=APPRAISED) == result


def test_every_kind_has_its_verifier() -> None:
    assert MEDIA_TYPE in VERIFIER_FOR_MEDIA_TYPE
    assert all(callable(loaded(each)) for each in VERIFIER_FOR_MEDIA_TYPE)


ROOMS_OF = """
import sys
from sealift.attest.development import MEDIA_TYPE
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.errors import SealiftError
import sealift.release.broker.server
appraiser = Appraiser(accept=(Level(sys.argv[1]),))
for kind in ("development", "snp", "tdx", "azure", "nvidia", "composite"):
    media_type = f"application/vnd.sealift.{kind}-evidence+json"
    try:
        appraiser.appraise(Evidence(kind, media_type, b"{}"), bytes(32))
    except SealiftError:
        pass
print(*sorted(name for name in sys.modules if name.startswith("sealift.attest.")))
"""


def rooms_loaded(level: Level) -> set[str]:
    command = [sys.executable, "-c", ROOMS_OF, level.value]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_rooms_of_kinds_that_nobody_accepts_are_not_loaded() -> None:
    """Not even where a stranger shows such evidence; a broker's own rooms included."""
    loaded_by = {
        level: rooms_loaded(level) for level in (Level.ATTESTED_HOST, Level.TEE)
    }
    prefix = "sealift.attest"
    tee = {f"{prefix}.{name}.verifier" for name in ("azure", "snp", "tdx")}
    rooms = ("azure.", "snp.", "tdx.")
    without = {
        each.rpartition(".")[2]
        for each in loaded_by[Level.ATTESTED_HOST]
        if each.removeprefix(f"{prefix}.").startswith(rooms)
    }
    assert not without
    assert tee <= loaded_by[Level.TEE]  # control
    assert f"{prefix}.development.verifier" not in loaded_by[Level.TEE]


@pytest.mark.parametrize("length", [0, 1, 2, 64, 65])
def test_an_attester_binds_2_to_64_bytes(key: SigningKey, length: int) -> None:
    attester = DevelopmentAttester(key, role=Role.HOLDER)
    if 2 <= length <= 64:
        assert attester.collect(bytes(length))
        return
    with pytest.raises(UsageError, match="2 to 64 bytes"):
        attester.collect(bytes(length))


@pytest.mark.parametrize(
    ("kind", "media_type", "body"),
    [
        ("Development", MEDIA_TYPE, b""),
        ("development", "text/html; charset=x", b""),
        ("development", MEDIA_TYPE, bytes((4 << 20) + 1)),
    ],
)
def test_evidence_is_limited(kind: str, media_type: str, body: bytes) -> None:
    with pytest.raises(MalformedError):
        Evidence(kind, media_type, body)
