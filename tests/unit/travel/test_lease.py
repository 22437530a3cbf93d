"""Leases: what they may say, who signs them, and when a holder serves one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from sealift.codec import decode, encode
from sealift.crypto.sign import SigningKey, sign_document
from sealift.errors import AuthenticationError, JobError, MalformedError, PolicyError
from sealift.ids import Digest
from sealift.travel.holder.visit import check_lease
from sealift.travel.visit.lease import SignedLease, verify_lease
from tests.sim.doors import World, holding, leased
from tests.sim.visit_world import VisitWorld
from tests.unit.travel.leases import LEASE, OPERATOR, TERMS
from tests.worlds.consortium import RUN


def test_a_signed_lease_verifies_after_a_round_trip() -> None:
    signed = decode(SignedLease, encode(sign_document(LEASE, OPERATOR)))
    assert verify_lease(signed, TERMS) == LEASE


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (0, 40)},
        {"shape": (1, 0)},
        {"first_row": -1},
        {"offset": -1},
        {"max_bytes": 399},
        {"lease_s": 0.0},
        {"lease_s": -1.0},
        {"lease_s": 8 * 86_400.0},
        {"lease_s": float("nan")},
    ],
)
def test_impossible_leases_do_not_exist(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedError):
        replace(LEASE, **change)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"job": "another"}, "foreign-lease"),
        ({"agreement": Digest.of(b"x")}, "foreign-lease"),
        ({"accelerator": OPERATOR.public_key}, "foreign-lease"),
        ({"lease_s": 60.5}, "lease-exceeds-agreement"),
    ],
)
def test_a_lease_for_others(change: dict[str, Any], code: str) -> None:
    with pytest.raises(PolicyError) as refusal:
        verify_lease(sign_document(replace(LEASE, **change), OPERATOR), TERMS)
    assert refusal.value.code == code


def test_a_lease_is_for_the_run_that_its_reader_was_started_for() -> None:
    assert verify_lease(sign_document(LEASE, OPERATOR), TERMS) == LEASE
    for changes in ({"seed": 7}, {"job": "x"}, {"epochs": 2}):
        other = replace(LEASE, run=replace(RUN, **changes))
        with pytest.raises(PolicyError) as refusal:
            verify_lease(sign_document(other, OPERATOR), TERMS)
        assert refusal.value.code == "foreign-lease"


def test_a_holder_serves_no_run_but_the_one_that_its_owner_allowed(
    tmp_path: Path,
) -> None:
    """Whatever the agreement's ranges hold: its job file is of one run (rule O1)."""
    world = World(tmp_path)
    lease = leased(world)
    for run, served in ((RUN, True), (replace(RUN, seed=7), False)):
        holder = holding(world, relay := MagicMock())
        holder._run = run
        relay.open.side_effect = EOFError  # it would fetch the accelerator now
        with pytest.raises(EOFError if served else PolicyError) as refusal:
            holder._provision(lease)
        assert served or getattr(refusal.value, "code", "") == "foreign-lease"


def test_a_holder_ends_where_another_run_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would refuse each lease, and the host would believe that it is away."""
    world = World(tmp_path)
    lease = leased(world)
    holder = holding(world, MagicMock())
    monkeypatch.setattr(
        "sealift.travel.holder.jobs._newest_order", lambda _: MagicMock(lease=lease)
    )
    holder._run = replace(RUN, seed=7)
    with pytest.raises(JobError) as refusal:
        holder._attend_to(MagicMock(), lambda: None)
    assert refusal.value.code == "another-run"
    assert "training.seed is 7 here" in refusal.value.why


def test_every_field_is_signed() -> None:
    signature = sign_document(LEASE, OPERATOR).signature
    for change in ({"first_row": 1}, {"purpose": "heldout"}, {"lease_s": 31.0}):
        with pytest.raises(AuthenticationError):
            verify_lease(SignedLease(replace(LEASE, **change), signature), TERMS)
    with pytest.raises(AuthenticationError):
        verify_lease(sign_document(LEASE, SigningKey.generate()), TERMS)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VisitWorld]:
    with VisitWorld(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"holder": "bern"}, "foreign-lease"),
        ({"resource": "bern-train"}, "foreign-lease"),
        ({"purpose": "heldout"}, "foreign-lease"),
        ({"content": Digest.of(b"x")}, "foreign-lease"),
        ({"shape": (10, 80)}, "bad-rows"),
        ({"first_row": 11}, "off-grid"),
        ({"lease_s": 61.0}, "lease-exceeds-agreement"),
    ],
)
def test_what_a_holder_does_not_serve(
    world: VisitWorld, change: dict[str, Any], code: str
) -> None:
    operator = world.consortium.identities["cleo"]
    held = {"ada-train": world.held["ada-train"]}
    lease = replace(
        LEASE,
        agreement=world.agreement.digest,
        content=world.resource("ada-train").content,
    )
    terms = replace(
        TERMS, orchestrator=operator.public_key, agreement=world.agreement.digest
    )
    served = check_lease(
        sign_document(lease, operator), held, holder="ada", terms=terms
    )
    assert served is held["ada-train"]
    changed = replace(lease, max_bytes=800, **change)
    with pytest.raises(PolicyError) as refusal:
        check_lease(sign_document(changed, operator), held, holder="ada", terms=terms)
    assert refusal.value.code == code
