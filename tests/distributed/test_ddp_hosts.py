"""The plan ``ddp`` on hosts of its own: who listens learns nothing; a host is cut off."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sealift.crypto.identity import load_identity
from sealift.crypto.keys import TOKEN
from sealift.demo.folder import OPERATOR, OWNERS, World
from sealift.demo.job import ONE_BUFFER, make_world, write_job
from sealift.demo.run import run_local
from sealift.demo.tasks import DIGITS
from sealift.release.vault.vault import Vault
from tests.sim.capture import places_of, words_of
from tests.sim.hosts import Hosts, hosts
from tests.sim.jobrun import JobRun, Running
from tests.sim.jobworld import made_once

pytestmark = [pytest.mark.distributed, pytest.mark.hosts, pytest.mark.long]
PORT = 7200
PEER, REFUSED = 4, 5  # exit statuses
TEXT = rb"[ -~]{8,}"
WORK = replace(
    DIGITS,
    schedule=replace(DIGITS.schedule, batch_rows=64, checkpoint_every=1),
)
RUN = 'patience = "lan"\nwork_s = 8.0\nrejoin_s = 0.0\ngather_s = 600.0'


def write_hosts_job(world: World, plan: str, epochs: int) -> None:
    work = replace(WORK, schedule=replace(WORK.schedule, rounds=epochs))
    write_job(world, work, ONE_BUFFER, "ddp")
    text = world.job.read_text().replace('plan = "ddp"', f'plan = "{plan}"')
    text = text.replace("127.0.0.1:0", f"10.77.0.1:{PORT}")
    world.job.write_text(text.replace('patience = "lan"', RUN))


class TownRun(JobRun):
    """Orchestrator and brokers on host 0, a rank on each of the others."""

    def __init__(self, world: World, town: Hosts, *, sealed: bool = True) -> None:
        super().__init__(world)
        self.town, self.sealed = town, sealed

    def start(
        self, name: str, *words: str | Path, module: tuple[str, ...] = ("sealift",)
    ) -> Running:
        if name.startswith("rank-") and not self.sealed:
            words += ("--keep-freed-memory",)  # else it starts itself again
            module = ("tests.sim.unsealed",)
        return super().start(name, *words, module=module)

    def enter(self, name: str) -> Sequence[str]:
        rank = name.removeprefix("rank-")
        return self.town.enter(OWNERS.index(rank) + 1 if rank in OWNERS else 0)

    def rank(self, owner: str, *more: str) -> None:
        home, own = self.world.home(owner), OWNERS.index(owner)
        places = [f"{each}:{PORT + 1}" for each in self.town.addresses[1:]]
        dials = [word for place in places[:own] for word in ("--dial", place)]
        kept = ("--sealed", home.sealed, "--receipts", home.receipts)
        state = ("--state", home.path / "state", "--direct", places[own])
        words = (*self._dial(), *map(str, (*kept, *state)), *dials, *more)
        self._start_role("accelerator", owner, *words, name=f"rank-{owner}")

    def everybody(self, *more: str) -> None:
        self._start_role("orchestrator", OPERATOR).wait_event("orchestrator.listening")
        self.address = f"{self.town.addresses[0]}:{PORT}"
        for owner in OWNERS:
            self.rank(owner, *more)
            self.broker(owner)


@contextmanager
def town_run(world: World, **how: bool) -> Iterator[TownRun]:
    with hosts(len(OWNERS) + 1) as town:
        run = TownRun(world, town, **how)
        try:
            yield run
        finally:
            run.stop()


@functools.cache
def made() -> World:
    return World(
        made_once("ddp-hosts", lambda path: make_world(path, WORK, plan="ddp"))
    )


@functools.cache
def alone(epochs: int) -> str:
    """Digest of the weights that the plan ``local`` makes of it."""
    world = made().again(f"-local-{epochs}")
    write_hosts_job(world, "local", epochs)
    return str(run_local(world).result["weights"])


def telling(plain: bytes, least: int) -> bytes:
    """The words of it, of so many bytes that differ, that stand nowhere by chance."""
    words = np.frombuffer(plain, np.uint8, len(plain) // 8 * 8).reshape(-1, 8)
    steps = np.diff(np.sort(words, axis=1), axis=1)
    return words[np.count_nonzero(steps, axis=1) + 1 >= least].tobytes()


def rows_of(world: World, owner: str) -> bytes:
    with np.load(world.tables / owner / "train.npz") as table:
        return telling(table["pixels"].astype(np.uint8).tobytes(), 5)


def data_keys(world: World) -> Iterator[bytes]:
    for owner in OWNERS:
        home = world.home(owner)
        passphrase = home.passphrase.read_text().strip()
        vault = Vault.open(home.vault, load_identity(home.key, passphrase))
        for sealed in home.sealed.glob("*.sealed"):
            yield vault.fetch(sealed.stem).reveal(TOKEN)
        vault.close()


def finished(run: TownRun) -> str:
    names = ("orchestrator", *(f"rank-{owner}" for owner in OWNERS))
    for name in names:
        assert run[name].end() == 0, run[name].errors
    return str(run["orchestrator"].results[-1]["weights"])


def crossed_in(world: World, **how: bool) -> list[bytes]:
    """All that crosses in a whole run, which gives what ``local`` gives."""
    write_hosts_job(world, "ddp", 2)
    with town_run(world, **how) as run:
        run.everybody()
        assert finished(run) == alone(2)
        (met,) = [e for e in run["rank-south"].events if e.kind == "group.met"]
        assert str(met.fields["paths"]).count("tcp") == 2
        return run.town.capture.crossed()


def test_what_crosses_between_hosts_is_no_row_no_weight_and_no_key() -> None:
    """The same bits as in a run whose pipes seal nothing: what crossed there is known."""
    plain = crossed_in(made().again("-plain"), sealed=False)
    words = (b'"metrics"', b'"of_the_job"', b"SEALCOL")
    assert all(places_of(word, plain) for word in words)
    crossed = crossed_in(made().again("-hosts"))
    assert not any(places_of(word, crossed) for word in words)
    # All rounds, behind the headers; lengths of frames have fewer bytes that differ.
    streams = [each[1024:] for each in plain if b"SEALPIP" in each[:512]]
    # So have words of text, and handshakes say some, like names of logs.
    changes = telling(b"".join(re.sub(TEXT, b"", each) for each in streams), 7)
    assert len(changes) > 100_000
    assert words_of(changes, crossed) == 0
    rows = [rows_of(made(), owner) for owner in OWNERS]
    assert all(len(each) > 8000 for each in rows)
    assert words_of(b"".join(rows), [*plain, *crossed]) == 0
    assert not any(places_of(key, [*plain, *crossed]) for key in data_keys(made()))
    assert places_of(b"accelerator-2", crossed)


def test_ranks_go_on_where_a_cut_off_host_stopped_them() -> None:
    world = made().again("-cut")
    write_hosts_job(world, "ddp", 5)
    with town_run(world) as run:
        run.everybody()
        run["orchestrator"].wait_event("round.ended", epoch=1)
        run.town.cut(3)
        for name in ("orchestrator", *(f"rank-{owner}" for owner in OWNERS)):
            cut = name == f"rank-{OWNERS[2]}"  # whose broker may be missed first
            assert run[name].end() in {PEER, REFUSED if cut else PEER}, run[name].errors
            assert run[name].error()
        assert f"({OWNERS[2]})" in run["orchestrator"].error()
        run.stop()
        run.town.restore(3)
        run.everybody("--must-resume")
        ready = run["orchestrator"].wait_event("rank.ready")
        assert int(str(ready.fields["position"])) >= 1
        assert finished(run) == alone(5)
