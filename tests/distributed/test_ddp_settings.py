"""What all parties signed holds, whatever the orchestrator sends and however often it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.demo.folder import OPERATOR
from tests.sim.ddpjobs import RANKS, shared_run, shared_world, write_shared
from tests.sim.jobworld import agree_again

pytestmark = pytest.mark.distributed
SOON = ('patience = "lan"', 'patience = "lan"\ngather_s = 120.0\nrejoin_s = 0.0')
ONE_EPOCH = ("epochs = 12", "epochs = 1")


def test_every_rank_refuses_other_settings_than_were_signed(tmp_path: Path) -> None:
    """Steps over single rows: before a key is asked for, with the setting's name."""
    with shared_run(shared_world(tmp_path)) as run:
        write_shared(run.world, SOON)
        home = run.world.home(OPERATOR)
        words = ["orchestrator", run.world.job, *home.unlocking, "--events", "-"]
        liar = run.start("orchestrator", *words, module=("tests.sim.othersettings",))
        port = liar.wait_event("orchestrator.listening").fields["port"]
        run.address = f"127.0.0.1:{port}"
        for owner in run.world.owners:
            run.broker(owner)
        ranks = [run.rank(number) for number in range(RANKS)]
        for rank in ranks:
            assert rank.end() == 5, rank.errors
            assert "training.batch_rows" in rank.error()
            assert rank.error().endswith("[settings-differ]")
            assert not any(e.kind == "release.collected" for e in rank.events)
        assert liar.end()
        for owner in run.world.owners:
            kinds = {each.kind for each in run[f"broker-{owner}"].events}
            assert "release.granted" not in kinds


def test_an_owners_side_counts_passes_over_all_starts(tmp_path: Path) -> None:
    """Other names, other seeds, all processes anew: `max_visits` is of all of them."""
    world = shared_world(tmp_path)
    # Each of two ranks works on its share of an owner's rows: two visits an epoch.
    agree_again(world, max_visits="2", min_visits="1")
    for number, ended in enumerate((0, 5)):
        job = world.again(f"-{number}")
        write_shared(job, SOON, ONE_EPOCH, ("seed = 7", f"seed = {number}"))
        with shared_run(job) as run:
            orchestrator = run.orchestrate()
            for owner in world.owners:
                run.broker(owner)
            ranks = [run.rank(each) for each in range(RANKS)]
            codes = [rank.end() for rank in ranks]
            if ended:
                assert ended in codes, [rank.errors for rank in ranks]
                assert any("[too-many-visits]" in rank.error() for rank in ranks)
                assert orchestrator.end()
            else:
                assert codes == [0] * RANKS, [rank.errors for rank in ranks]
                assert orchestrator.end() == 0, orchestrator.errors


@pytest.mark.long
def test_a_limit_that_is_reached_in_the_midst_ends_with_a_model(
    tmp_path: Path,
) -> None:
    """An earlier run used half of the visits: the next one ends after half of its rounds."""
    world = shared_world(tmp_path)
    agree_again(world, max_visits="4", min_visits="1")
    for number, epochs in enumerate((1, 2)):
        job = world.again(f"-{number}")
        write_shared(
            job,
            SOON,
            ("epochs = 12", f"epochs = {epochs}"),
            ("seed = 7", f"seed = {number}"),
        )
        with shared_run(job) as run:
            orchestrator = run.orchestrate()
            for owner in world.owners:
                run.broker(owner)
            ranks = [run.rank(each) for each in range(RANKS)]
            codes = [rank.end() for rank in ranks]
            assert codes == [0] * RANKS, [rank.errors for rank in ranks]
            assert orchestrator.end() == 0, orchestrator.errors
            limited = [e for e in ranks[0].events if e.kind == "job.limited"]
            assert [e.fields["epoch"] for e in limited] == [1] * number
            (result,) = orchestrator.results
            assert ("trained_less" in result) is (number == 1), result
            if number:
                assert "2 of 4 times" in result["trained_less"]
