"""``sums = "only"`` in the plan ``ddp``: three real ranks that learn sums alone."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.demo.folder import World
from sealift.demo.job import ONE_BUFFER, make_world, write_job
from sealift.demo.run import DemoRun, check_rounds, run_ddp, run_local
from sealift.demo.tasks import DIGITS
from sealift.errors import SealiftError
from tests.sim.jobworld import agree_again, made_once
from tests.sim.owners import NOW_S

pytestmark = pytest.mark.distributed
WORK = replace(
    DIGITS,
    schedule=replace(DIGITS.schedule, epochs=2, rounds=0, batch_rows=64),
    bar_s=60.0,
)


def world() -> World:
    def make(path: Path) -> None:
        made = make_world(path, WORK, plan="ddp")
        document = made.path / "agreement.toml"
        text = document.read_text()
        marked = "\nmax_norm = 0.0"
        assert marked in text
        text = text.replace(
            marked,
            f"{marked}\nsum_bound = 1.0\nsum_places = 26\nsum_bits = 32",
        )
        document.write_text(text.replace('rows = ["owner", "share"]', 'rows = "owner"'))
        agree_again(
            made,
            plans='["ddp"]',
            drop_last="true",
            sums='["only"]',
            sum_bound="{ min = 0.001, max = 1.0 }",
        )

    return World(made_once("ddp-sums-world", make))


def run(act: str, *words: str) -> tuple[World, DemoRun, list[Any]]:
    """All owners' processes, brokers and the orchestrator; what they said."""
    of = world().again(act)
    write_job(of, WORK, ONE_BUFFER, "ddp")
    lines = "\n".join(["[slices]", 'sums = "only"', *words])
    text = of.job.read_text().replace("[slices]", lines)
    of.job.write_text(text.replace("seed = 7", "seed = 7\ndrop_last = true"))
    told: list[Any] = []
    return of, run_ddp(of, lambda progress, event: told.append(event)), told


@functools.cache
def ran() -> tuple[World, DemoRun, list[Any]]:
    return run("-only")


def test_three_ranks_train_what_ranks_train_that_see_parts() -> None:
    """Numbers are rounded by 2**-26; measures have three digits."""
    of, found, told = ran()
    alone = of.again("-here")
    write_job(alone, WORK, ONE_BUFFER, "ddp")
    text = alone.job.read_text().replace('plan = "ddp"', 'plan = "local"')
    alone.job.write_text(text.replace("seed = 7", "seed = 7\ndrop_last = true"))
    with pytest.raises(SealiftError) as caught:
        run_local(alone)  # this plan has everybody's rows, and was not agreed on
    assert caught.value.code == "settings-differ"
    parts = World(made_once("ddp-world", lambda p: make_world(p, WORK, plan="ddp")))
    alone = parts.again("-sums-here")
    write_job(alone, WORK, ONE_BUFFER, "ddp")
    text = alone.job.read_text().replace('plan = "ddp"', 'plan = "local"')
    alone.job.write_text(text.replace("seed = 7", "seed = 7\ndrop_last = true"))
    here = run_local(alone).result
    assert found.result["metrics"] == pytest.approx(here["metrics"], abs=0.004)
    assert found.result["weights"] != here["weights"]
    assert not [each for each in told if each.kind == "sums.cut"]


def test_what_the_parties_keep_verifies_and_has_no_owners_own_number() -> None:
    of, found, said = ran()
    verdict = check_rounds(of, found, now=lambda: NOW_S)
    assert verdict.failures == []
    (told,) = {each.fields["metric.loss"] for each in said if is_heldout(each)}
    assert told == found.result["metrics"]["loss"]


def is_heldout(event: Any) -> bool:
    return event.kind == "round.ended" and event.fields["purpose"] == "heldout"


def test_what_is_cut_to_the_bound_is_counted_and_said() -> None:
    _of, found, told = run("-cut", "sum_bound = 0.001")
    cut = {
        (each.fields["epoch"], each.fields["numbers"])
        for each in told
        if each.kind == "sums.cut"
    }
    assert len({epoch for epoch, _ in cut}) == len(cut) > 0
    assert all(numbers > 0 for _, numbers in cut)
    assert found.result["metrics"]["accuracy"] > 0.1
