"""The plan ``ddp``: real processes on their owners' places, equal to ``local`` bit for bit."""

from __future__ import annotations

import functools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.demo.folder import OWNERS, World
from sealift.demo.job import ONE_BUFFER, make_world, write_job
from sealift.demo.run import DemoRun, check_rounds, run_ddp, run_local
from sealift.demo.tasks import DIGITS
from sealift.release.agreement.signed import load_verified
from sealift.release.equip import equip
from sealift.release.log.heads import read_entries
from sealift.release.receipt import read_receipts, verify_receipt
from tests.sim.jobworld import agree_again, made_once
from tests.sim.owners import NOW_S

pytestmark = pytest.mark.distributed
WORK = replace(
    DIGITS,
    schedule=replace(DIGITS.schedule, epochs=2, rounds=0, batch_rows=64),
    bar_s=60.0,
)


def world() -> World:
    return World(
        made_once("ddp-world", lambda path: make_world(path, WORK, plan="ddp"))
    )


@functools.cache
def ran() -> DemoRun:
    return run_ddp(world(), lambda progress, event: None)


def steps_world() -> World:
    """The same, where ranks may come together in every step."""

    def make(path: Path) -> None:
        made = make_world(path, WORK, plan="ddp")
        agree_again(made, sync='["step"]', drop_last="true")

    return World(made_once("ddp-steps-world", make))


def job(act: str, *changes: tuple[str, str], made: World | None = None) -> World:
    """Another job of the same parties."""
    of = (made or world()).again(act)
    write_job(of, WORK, ONE_BUFFER, "ddp")
    text = of.job.read_text()
    for was, becomes in changes:
        assert was in text
        text = text.replace(was, becomes)
    of.job.write_text(text)
    return of


HERE = ('plan = "ddp"', 'plan = "local"')
STEPS = ("[slices]", '[slices]\nsync = "step"')
WHOLE = ("seed = 7", "seed = 7\ndrop_last = true")


@pytest.mark.plan
def test_ranks_train_what_one_process_trains() -> None:
    result, alone = ran().result, run_local(job("-local", HERE)).result
    assert result["weights"] == alone["weights"]
    assert result["metrics"] == alone["metrics"]


def test_ranks_make_every_step_that_one_process_makes() -> None:
    agreed = steps_world()
    alone = run_local(job("-steps-here", HERE, STEPS, WHOLE, made=agreed)).result
    of = job("-steps", STEPS, WHOLE, made=agreed)
    result = run_ddp(of, lambda progress, event: None).result
    assert result["weights"] == alone["weights"] != ran().result["weights"]
    assert result["metrics"] == alone["metrics"]


@pytest.mark.plan
def test_every_key_went_to_its_owners_own_rank_alone() -> None:
    assert ran().result["level"] == "development"
    instances = set[Any]()
    for owner in OWNERS:
        entries: list[Any] = list(read_entries(world().home(owner).log))
        own = {each.instance for each in entries if each.kind == "release"}
        assert own
        assert not own & instances
        instances |= own


@pytest.mark.plan
def test_every_use_of_rows_has_a_receipt_at_home() -> None:
    ran()
    verified = equip(load_verified(world().agreement), clock=lambda: NOW_S)
    for owner in OWNERS:
        found = [
            verify_receipt(signed, verified)
            for path in world().home(owner).receipts.iterdir()
            for signed, _end in read_receipts(path)
        ]
        assert {each.holder for each in found} == {owner}
        assert [each.purpose for each in found] == ["train", "train", "heldout"]


@pytest.mark.plan
def test_what_the_parties_keep_verifies() -> None:
    verdict = check_rounds(world(), ran(), now=lambda: NOW_S)
    assert verdict.failures == []
    assert all(good for good, _ in verdict.checks)


def test_a_log_without_the_release_is_found(tmp_path: Path) -> None:
    """Control: another owner's log in its place."""
    ran()
    shutil.copytree(world().path, tmp_path, dirs_exist_ok=True)
    other = World(tmp_path)
    shutil.copy(other.home("east").log, other.home("north").log)
    assert check_rounds(other, ran(), now=lambda: NOW_S).failures


def test_a_receipt_that_is_missing_is_found(tmp_path: Path) -> None:
    """Control: one use of rows without a receipt."""
    ran()
    shutil.copytree(world().path, tmp_path, dirs_exist_ok=True)
    other = World(tmp_path)
    (kept,) = other.home("east").receipts.iterdir()
    kept.write_bytes(b"".join(kept.read_bytes().splitlines(keepends=True)[1:]))
    verdict = check_rounds(other, ran(), now=lambda: NOW_S)
    assert [each.partition(":")[0] for each in verdict.failures] == ["receipts"]
