"""TDX evidence collected in a made guest, and judged: over a stand-in of the kernel."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

import pytest

from sealift.attest import Appraiser, Claims, Evidence, Level
from sealift.attest.configfs import RuntimeRegister, TdxAttester, TsmReader
from sealift.attest.policy import VERIFIER_FOR_MEDIA_TYPE
from sealift.attest.reference import AppraisalBasis
from sealift.attest.runtimelog import CODE_BUNDLE, MODULE, RuntimeEvent
from sealift.attest.tdx.evidence import MEDIA_TYPE, TdxBody
from sealift.errors import EvidenceError, UnavailableError, UsageError
from sealift.ids import Digest
from tests.sim.intel_world import IntelWorld
from tests.sim.made_chain import AT_S
from tests.sim.tsm_folder import StandInTsmFolder, refusal

BOUND = bytes(range(32))
BUNDLE = Digest.of(b"code")
EVENTS = (RuntimeEvent(CODE_BUNDLE, BUNDLE.raw), RuntimeEvent(MODULE, b"{}"))


@pytest.fixture
def world() -> IntelWorld:
    return IntelWorld()


def attester(world: IntelWorld, ccel: Path = Path("/absent")) -> TdxAttester:
    folder = StandInTsmFolder(lambda inblob, level: (world.quote(inblob), b""))
    return TdxAttester(TsmReader(folder), world.guest, ccel)


def examine(world: IntelWorld, evidence: Evidence) -> Claims:
    return world.verifier().examine(
        evidence,
        AppraisalBasis(
            bound=BOUND,
            references=world.references(),
            collateral=world.collateral(),
            at_s=AT_S,
        ),
    )


def failed(claims: Claims) -> set[str]:
    return {each.code for each in claims.checks if not each.passed}


def test_collected_evidence_is_appraised_at_tee(world: IntelWorld) -> None:
    made = attester(world)
    for event in EVENTS:
        made.measure(event)
    appraiser = Appraiser(
        accept=(Level.TEE,),
        references=world.references(),
        collateral=world.collateral(),
        clock=lambda: AT_S,
        verifiers={MEDIA_TYPE: world.verifier()},
    )
    result = appraiser.appraise(made.collect(BOUND), BOUND)
    assert result.level is Level.TEE
    assert result.claims.code_bundle == BUNDLE
    assert result.claims.events == EVENTS


def test_intel_did_not_sign_the_made_world(world: IntelWorld) -> None:
    verifier = VERIFIER_FOR_MEDIA_TYPE[MEDIA_TYPE]
    with pytest.raises(EvidenceError) as caught:
        verifier.examine(
            attester(world).collect(BOUND),
            AppraisalBasis(
                bound=BOUND,
                references=world.references(),
                collateral=world.collateral(),
                at_s=AT_S,
            ),
        )
    assert caught.value.code == "chain-root"


def test_each_collection_is_over_its_own_challenge(world: IntelWorld) -> None:
    made = attester(world)
    assert not failed(examine(world, made.collect(BOUND)))
    assert failed(examine(world, made.collect(bytes(32)))) == {"evidence-unbound"}


def test_a_lost_event_is_refused(world: IntelWorld) -> None:
    made = attester(world)
    for event in EVENTS:
        made.measure(event)
    del made._events[0]
    assert failed(examine(world, made.collect(BOUND))) == {"tdx-log"}


def test_a_restarted_agent_is_refused(world: IntelWorld) -> None:
    attester(world).measure(EVENTS[0])
    assert failed(examine(world, attester(world).collect(BOUND))) == {"tdx-log"}


def test_a_register_that_cannot_be_extended_keeps_no_event(world: IntelWorld) -> None:
    made = attester(world)
    made.register = RuntimeRegister(Path("/absent/rtmr3:sha384"))
    with pytest.raises(UnavailableError) as caught:
        made.measure(EVENTS[0])
    assert caught.value.code == "rtmr-unavailable"
    assert TdxBody.parse(made.collect(BOUND).body).events == ()


def test_the_register_file_takes_the_whole_digest(tmp_path: Path) -> None:
    path = tmp_path / "rtmr3:sha384"
    path.touch()
    RuntimeRegister(path).extend(b"\1" * 48)
    assert path.read_bytes() == b"\1" * 48


def test_another_platform_is_named(world: IntelWorld) -> None:
    made = attester(world)
    made.reader = TsmReader(
        StandInTsmFolder(lambda inblob, level: (b"report", b""), provider="sev_guest")
    )
    with pytest.raises(UnavailableError, match="sev_guest") as caught:
        made.collect(BOUND)
    assert caught.value.code == "tsm-provider"


@dataclass
class Recorded:
    """A platform that answers every challenge with the same recorded quote."""

    quote: bytes

    def __call__(self, inblob: bytes, privlevel: int) -> tuple[bytes, bytes]:
        return self.quote, b""


def test_a_replayed_quote_is_not_passed_on(world: IntelWorld) -> None:
    recorded = Recorded(world.quote(bytes(64)))
    made = TdxAttester(TsmReader(StandInTsmFolder(recorded)), world.guest)
    with pytest.raises(UnavailableError) as caught:
        made.collect(BOUND)
    assert caught.value.code == "tsm-interfered"
    assert made.collect(bytes(32))


def test_a_platform_error_is_reported(world: IntelWorld) -> None:
    def failing(inblob: bytes, privlevel: int) -> tuple[bytes, bytes]:
        raise refusal(errno.EIO)

    made = TdxAttester(TsmReader(StandInTsmFolder(failing)), world.guest)
    with pytest.raises(UnavailableError) as caught:
        made.collect(BOUND)
    assert caught.value.code == "tsm-failed"


@pytest.mark.parametrize("length", [0, 1, 65])
def test_too_little_or_too_much_to_bind(world: IntelWorld, length: int) -> None:
    with pytest.raises(UsageError):
        attester(world).collect(bytes(length))


def test_longer_hash_of_another_protocol(world: IntelWorld) -> None:
    body = TdxBody.parse(attester(world).collect(bytes(range(48))).body)
    assert bytes(range(48)) + bytes(16) in body.quote
