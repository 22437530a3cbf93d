"""One broker for two owners, beside a third with its own: real processes, real sockets."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from sealift.cli.main import main
from sealift.cli.owncode import own_code
from sealift.crypto.keys import TOKEN
from sealift.data.card import read_card
from sealift.demo.homes import World
from sealift.demo.tasks.digits import ROW_BYTES
from sealift.release.document import compile_document
from sealift.release.logcheck import read_entries
from sealift.release.signed import add_signature, save_signed
from sealift.release.vault import Vault
from tests.attacks.test_shared_broker_keys import forms
from tests.sim.jobrun import JobRun, Running, job_run, key_words
from tests.sim.jobworld import fresh_world, identities
from tests.sim.statistics import OWNERS, expected, statistics_alone

# Twelve processes. Each step of it is tested over a relay in tests/contract as well.
pytestmark = [pytest.mark.distributed, pytest.mark.soak]
ENTRUSTING, ALONE = OWNERS[:2], OWNERS[2]


def shared_world(folder: Path) -> World:
    """A job of sums, under an agreement that lets two owners entrust."""
    world = fresh_world(folder, statistics_alone(buffer_bytes=200 * ROW_BYTES))
    document = world.path / "agreement.toml"
    names = ", ".join(f'"{name}"' for name in ENTRUSTING)
    table = f'operator = "cloud"\ncode = "{own_code()}"\nowners = [{names}]\n'
    document.write_text(f"{document.read_text()}\n[shared_broker]\n{table}")
    signed = compile_document(document, lambda path: read_card(path).resource)
    for party in signed.agreement.parties:
        signed = add_signature(signed, identities()[party.name])
    save_signed(signed, world.agreement)
    return world


class SharedRun:
    """The processes of such a job."""

    def __init__(self, run: JobRun) -> None:
        self.run = run
        self.logs = run.world.path / "logs"

    def start_broker(self, name: str = "shared") -> Running:
        world = self.run.world
        words = ("broker", "shared", world.job, *key_words(world.home("gpu-host")))
        more = ("--logs", self.logs, "--events", "-", *self._dial())
        role = self.run.start(name, *words, *more)
        role.wait_event("broker.ready")
        return role

    def owner(self, verb: str, name: str, *more: str | Path) -> Running:
        world = self.run.world
        words = ("broker", verb, world.job, *key_words(world.home(name)))
        return self.run.start(f"{verb}-{name}", *words, *more, *self._dial())

    def entrust(self, name: str) -> Running:
        return self.owner(
            "entrust", name, "--vault", self.run.world.home(name).vault, "--yes"
        )

    def _dial(self) -> tuple[str, ...]:
        return ("--orchestrator", self.run.address)


def test_a_job_with_a_shared_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = shared_world(tmp_path)
    with job_run(world) as run:
        run.orchestrator()
        several = SharedRun(run)
        broker = several.start_broker()
        broker.wait_line("level development: whoever operates this machine can read")
        entrusting = [several.entrust(name) for name in ENTRUSTING]
        run.accelerator()
        run.holder(ALONE)
        for owner in ENTRUSTING:
            run.holder(owner, with_broker=False)
        for role in entrusting:
            assert role.end() == 0, role.errors
            role.wait_line("the broker proved level development")
        orchestrator = run["orchestrator"]
        assert orchestrator.end() == 0, orchestrator.errors
        assert broker.end() == 0, broker.errors
        assert [run[f"holder-{each}"].end() for each in OWNERS] == [0, 0, 0]
        assert orchestrator.results[-1]["statistics"] == expected(world)
    check_papers(world, several.logs, capsys)
    check_no_key(world, several.logs)


def check_papers(world: World, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Manifest, logs of both seats, and every receipt, by the ordinary commands."""
    agreement = ("--agreement", str(world.agreement))
    found = sorted(logs.glob("*.log"))
    assert [path.name.rsplit("-", 1)[0] for path in found] == sorted(ENTRUSTING)
    with_logs = [word for path in found for word in ("--with-log", str(path))]
    assert main(["audit", "verify", str(world.run), *agreement, *with_logs]) == 0
    said = capsys.readouterr().out
    assert all(f"{name}: {name}-train" in said for name in ENTRUSTING)
    for path in found:
        kinds = [each.kind for each in read_entries(path)]
        assert kinds[0] == "agreement"
        assert "release" in kinds
    for name in OWNERS:
        receipts = sorted(world.home(name).receipts.glob("*.receipt.json"))
        assert receipts
        assert main(["receipt", "verify", str(receipts[0]), *agreement]) == 0
    capsys.readouterr()


def check_no_key(world: World, logs: Path) -> None:
    """P4: nothing that the broker's operator kept holds a data key."""
    kept = b"".join(path.read_bytes() for path in logs.iterdir())
    for owner in ENTRUSTING:
        vault = Vault.open(world.home(owner).vault, identities()[owner])
        with closing(vault):
            raw = vault.fetch(f"{owner}-train").reveal(TOKEN)
        assert not any(form in kept for form in forms(raw))


def test_withdrawn(tmp_path: Path) -> None:
    """By the command; in one process: ``tests/contract/test_shared_broker.py``."""
    world = shared_world(tmp_path)
    owner = ENTRUSTING[0]
    with job_run(world) as run:
        run.orchestrator()
        several = SharedRun(run)
        broker = several.start_broker()
        assert several.entrust(owner).end() == 0
        broker.wait_event("broker.entrusted", owner=owner)
        withdraw = several.owner("withdraw", owner)
        assert withdraw.end() == 0, withdraw.errors
        broker.wait_event("broker.gave-up", owner=owner)
    assert len(list(world.path.glob("*-withdraw.statement.json"))) == 1
