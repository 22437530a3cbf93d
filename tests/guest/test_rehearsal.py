"""A rehearsed attested host: what is agreed, what is watched, what is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.level import Level
from sealift.attest.reference import ImaReferences, TpmReferences, TpmRoot
from sealift.demo.folder import OWNERS
from sealift.demo.job import make_world, second_act
from sealift.demo.outcome import BOUND_S, Revocation
from sealift.demo.report import render
from sealift.demo.tasks import DIGITS
from sealift.demo.views import rehearses, say_banner
from sealift.ids import Digest
from sealift.release.agreement.signed import load_verified
from sealift.release.broker.messages import HEARTBEAT_MISSING
from sealift.train.job.roleprocesses import RoleEvent
from sealift.train.job.settings import read_job
from sealift.view.markup import say_loudly
from tests.guest.rehearsal import Watched
from tests.unit.demo.test_report import outcome

LEVEL = "development (rehearsing attested-host)"
HOST = TpmReferences(
    roots=(TpmRoot(name="a maker", key=Digest(bytes(32)), operator="software"),),
    endorsement_keys=(Digest(b"e" * 32),),
    pcrs={"0": (bytes(32),), "10": ()} | {"4": (b"a" * 32, b"b" * 32)},
    ima=ImaReferences(allow={'/bin/"quoted" é': (Digest(b"f" * 32),)}),
)
REVOKED = Revocation(
    path="/tmp/unlisted",
    rules={"north": "ima-entry-unlisted", "east": HEARTBEAT_MISSING},
    last_byte_s=0.5,
    frames_after=3,
    scrubbed_bytes=1000,
    ended_s=1.5,
)


def test_the_document_holds_the_host_and_the_leases(tmp_path: Path) -> None:
    asked = []

    def host() -> TpmReferences:
        asked.append(tmp_path)
        return HOST

    world = make_world(tmp_path / "world", DIGITS, host=host)
    agreement = load_verified(world.agreement).agreement
    assert asked == [tmp_path]
    assert agreement.rehearse is Level.ATTESTED_HOST
    assert agreement.references.tpm == HOST
    owners = [agreement.party(owner).sign for owner in OWNERS]
    assert list(agreement.references.enrollers) == owners
    beats = {each.rule.heartbeat_s for each in agreement.resources}
    assert beats == {BOUND_S - 1}
    again = second_act(world)
    assert read_job(again.job).name != read_job(world.job).name
    assert (again.run, again.home("north").receipts) != (
        world.run,
        world.home("north").receipts,
    )
    assert again.home("north").log == world.home("north").log


def test_frames_count_from_the_act_on() -> None:
    watched = Watched()
    for at_s in (1.0, 2.0, 3.5):
        watched.take(RoleEvent("holder-north", at_s, "holder.frame", {}))
    lost = {"scrubbed_bytes": 7}
    watched.take(RoleEvent("accelerator", 4.0, "visit.abandoned", lost))
    assert watched.after(2.0) == [1.5]
    for outcome_, scrubbed in (("verified", 100), ("failed", 20)):
        fields = {"outcome": outcome_, "scrubbed_bytes": scrubbed}
        watched.take(RoleEvent("orchestrator", 4.0, "visit.ended", fields))
    assert watched.scrubbed_bytes == 27


@pytest.mark.parametrize(
    ("found", "held"),
    [
        (REVOKED, True),
        (replace(REVOKED, last_byte_s=BOUND_S + 0.1), False),
        (replace(REVOKED, rules={}), False),
        (replace(REVOKED, rules={"north": HEARTBEAT_MISSING}), False),
    ],
)
def test_it_held_if_somebody_saw_it_and_the_flow_stopped(
    found: Revocation, held: bool
) -> None:
    assert found.held is held


def test_the_page_names_the_rehearsal_and_the_second_act(tmp_path: Path) -> None:
    shown = outcome(tmp_path)
    assert "A host that misbehaved" not in render(shown)
    shown.level, shown.revocation = LEVEL, REVOKED
    page = render(shown)
    for words in (
        LEVEL,
        say_loudly(LEVEL),
        "outside of it",
        "ima-entry-unlisted",
        "0.50 s",
    ):
        assert words in page
    assert "evidence comes from a software key" not in page


def test_a_rehearsal_has_a_banner_of_its_own() -> None:
    assert rehearses(LEVEL)
    assert say_loudly(LEVEL) == "DEVELOPMENT (rehearsing attested-host)"
    assert say_banner(LEVEL) != say_banner("development")
    assert "protected" in say_banner(LEVEL)
