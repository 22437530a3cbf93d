"""Private steps in a real job of the plan ``ddp``: what three owners' ranks make and tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.demo.folder import World
from sealift.demo.job import ONE_BUFFER, make_world, write_job
from sealift.demo.roles import DemoRun, run_ddp
from sealift.demo.run import check_rounds
from sealift.demo.tasks.digits import DIGITS
from tests.sim.jobworld import agree_again, made_once
from tests.sim.owners import NOW_S

pytestmark = pytest.mark.distributed
WORK = replace(
    DIGITS,
    schedule=replace(DIGITS.schedule, epochs=2, rounds=0, batch_rows=64),
    bar_s=60.0,
)
PRIVACY = "\n[{table}privacy]\nclip = 1.0\nnoise = 0.6\nbatch = 64\n"


def world() -> World:
    def make(path: Path) -> None:
        made = make_world(path, WORK, plan="ddp")
        document = made.path / "agreement.toml"
        text = document.read_text()
        assert text.count("\nruns = ") == 1
        text = text.replace("\nruns = ", "\nprivacy_trusts_code = true\nruns = ")
        text = text.replace('rows = ["owner", "share"]', 'rows = "owner"')
        document.write_text(text + PRIVACY.format(table="training."))
        agree_again(made, plans='["ddp"]', sync='["round"]', prepare="false")

    return World(made_once("ddp-private-world", make))


def run(act: str) -> tuple[World, DemoRun, list[Any]]:
    of = world().again(act)
    write_job(of, WORK, ONE_BUFFER, "ddp")
    of.job.write_text(of.job.read_text() + PRIVACY.format(table=""))
    told: list[Any] = []
    return of, run_ddp(of, lambda progress, event: told.append(event)), told


def test_three_ranks_tell_no_number_over_rows() -> None:
    of, found, told = run("-first")
    assert found.result["metrics"] == {}
    numbers = [name for each in told for name in each.fields if "metric" in name]
    assert numbers == []
    verdict = check_rounds(of, found, now=lambda: NOW_S)
    assert verdict.failures == []
    _of, again, _told = run("-again")
    assert again.result["weights"] != found.result["weights"]  # of one seed
