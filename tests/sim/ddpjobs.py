"""Worlds and runs of the plan ``ddp`` whose rows are shared out on one machine."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sealift.crypto.identity import load_identity
from sealift.data.schema.card import read_card
from sealift.demo.folder import HOST, OPERATOR, World
from sealift.demo.job import ONE_BUFFER, make_world, write_job
from sealift.demo.run import run_local
from sealift.demo.tasks import DIGITS
from sealift.release.agreement.document import compile_document
from sealift.release.agreement.signed import add_signature, save_signed
from tests.sim.jobrun import JobRun, Running
from tests.sim.jobworld import made_once

RANKS = 2
WORK = replace(
    DIGITS, schedule=replace(DIGITS.schedule, epochs=12, rounds=0, checkpoint_every=1)
)
SLICES = f'\n[slices]\ncount = {RANKS}\nrows = "share"\n'


def shared_world(folder: Path) -> World:
    """Parties that agreed on ranks of one host, each with its share of all rows."""
    made = made_once("ddp-shared", _make)
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return World(folder)


def _make(path: Path) -> None:
    world = make_world(path, WORK, plan="ddp")
    document = path / "agreement.toml"
    text = document.read_text().partition("\n[group]\n")[0]
    host = load_identity(
        world.home(HOST).key, world.home(HOST).passphrase.read_text().strip()
    )
    text, count = re.subn(
        r"(?ms)^(development_attesters = \[).*?^\]",
        rf'\1"{host.public_key.to_text()}"]',
        text,
    )
    assert count == 1
    text = text.replace('sync = ["round"] ', 'sync = ["round", "step"] ')
    text = text.replace("drop_last = [true, false]", "drop_last = true")
    document.write_text(f'{text}\n[group]\nranks = {RANKS}\nrows = "share"\n')
    signed = compile_document(document, lambda each: read_card(each).resource)
    for party in signed.agreement.parties:
        home = world.home(party.name)
        identity = load_identity(home.key, home.passphrase.read_text().strip())
        signed = add_signature(signed, identity)
    save_signed(signed, world.agreement)
    write_shared(world)


def write_shared(world: World, *changes: tuple[str, str]) -> World:
    """Its job, with these words changed."""
    write_job(world, WORK, ONE_BUFFER, "travel")
    text = world.job.read_text().replace('"travel"', '"ddp"') + SLICES
    text = text.replace("seed = 7\n", "seed = 7\ndrop_last = true\n")
    for was, becomes in changes:
        assert was in text
        text = text.replace(was, becomes)
    world.job.write_text(text)
    return world


def weights_alone(world: World, *changes: tuple[str, str]) -> str:
    """What the plan ``local`` makes of the job."""
    changes = (('plan = "ddp"', 'plan = "local"'), *changes)
    return str(
        run_local(write_shared(world.again("-alone"), *changes)).result["weights"]
    )


class SharedRun(JobRun):
    """Its orchestrator and brokers, and ranks that torchrun starts."""

    def orchestrate(self, *more: str) -> Running:
        """Start it, and wait until it listens."""
        role = self._start_role("orchestrator", OPERATOR, *more)
        port = role.wait_event("orchestrator.listening").fields["port"]
        self.address = f"127.0.0.1:{port}"
        return role

    def rank(self, number: int, *more: str, name: str = "") -> Running:
        """One that a person starts."""
        words = [*self._dial(), "--rank", str(number), *more]
        for owner in self.world.owners:
            words += ["--sealed", str(self.world.home(owner).sealed)]
        name = name or f"rank-{number}"
        return self._start_role("accelerator", HOST, *words, name=name)

    def enter(self, name: str) -> Sequence[str]:
        """Ranks that torchrun starts learn everything from the environment."""
        host = self.world.home(HOST)
        sealed = [str(self.world.home(each).sealed) for each in self.world.owners]
        said = {
            "KEY": host.key,
            "PASSPHRASE_FILE": host.passphrase,
            "SEALED": os.pathsep.join(sealed),
            "RECEIPTS": host.receipts,
            "STATE": host.path / "state",
            "ORCHESTRATOR": self.address,
        }
        words = ["env", f"TMPDIR={self.world.path}"]
        words += [f"SEALIFT_{option}={value}" for option, value in said.items()]
        return words if name == "torchrun" else ()

    def torchrun(self, ranks: int = RANKS, *options: str) -> Running:
        """Ranks that torchrun starts, and all of them again if one ends."""
        words = ("--standalone", "--local-addr", "127.0.0.1", *options)
        module = ("torch.distributed.run", *words, "--nproc-per-node", str(ranks))
        ours = ("-m", "sealift.train", self.world.job)
        return self.start("torchrun", *ours, module=module)


@contextmanager
def shared_run(world: World) -> Iterator[SharedRun]:
    """A run whose processes all end with the block."""
    run = SharedRun(world)
    try:
        yield run
    finally:
        run.stop()


def children(pid: int) -> list[int]:
    """Processes that it started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [
        int(each) for task in tasks for each in (task / "children").read_text().split()
    ]
