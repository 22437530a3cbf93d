"""Worlds of real parties for tests of whole runs: made once, copied and changed.

A world has real identities, sealed digits, a vault per owner and an agreement that every
party signed; ``change`` makes another agreement of it and has it signed again.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from sealift.channel.record.sealedfile import SealedFileReader
from sealift.codec import encode
from sealift.crypto.identity import Identity, load_identity
from sealift.data.schema.card import read_card
from sealift.demo.folder import OWNERS, World
from sealift.demo.job import make_world
from sealift.demo.tasks import DIGITS
from sealift.events import Sink, discard
from sealift.release.agreement.code import load_bundle
from sealift.release.agreement.document import compile_document
from sealift.release.agreement.signed import (
    add_signature,
    load_signed,
    save_signed,
    verify,
)
from sealift.release.vault.vault import Vault
from sealift.train.job.settings import read_job
from sealift.train.loop.products import Outsourcing
from sealift.train.loop.tasks import Workplace
from sealift.train.plans.local import LocalRun, SealedTables, train_local
from tests.sim.inplace import InPlace
from tests.sim.runfolder import made_once

RECIPE = """
import time

import torch
from torch import nn
from torch.nn import functional as F

STEP_S = 0.0


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.1), nn.Linear(16, 10))

    def training_step(self, batch, step):
        time.sleep(STEP_S)
        return F.cross_entropy(self.layers(batch["pixels"] / 16.0), batch["label"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def build():
    return Small()
"""
JOB = """\
name = "digits"
agreement = "agreement.json"
bundle = "recipe"
output = "run"
orchestrator = "127.0.0.1:0"
plan = "{plan}"

[training]
epochs = {epochs}
prepare = {prepare}
batch_rows = 64
seed = {seed}

[travel]
order = "{order}"
buffer_bytes = {buffer_bytes}
buffers = {buffers}
mixed = {mixed}
on_missing = "{on_missing}"

[run]
gather_s = {gather_s}
rejoin_s = {rejoin_s}
checkpoint_every = {checkpoint_every}

[run.advanced]
lease_s = {lease_s}
meet_s = {meet_s}
brokers_s = {brokers_s}
wait_s = 15.0
{slices}"""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a test wants different from the plain world."""

    owners: tuple[str, ...] = ("north", "east")
    recipe: str = RECIPE
    step_s: float = 0.0
    plan: str = "travel"
    epochs: int = 2
    prepare: str = "false"
    seed: int = 7
    order: str = "round-robin"
    buffer_bytes: int = 1 << 20
    lease_s: float = 20.0
    meet_s: float = 5.0
    gather_s: float = 40.0
    brokers_s: float = 20.0
    rejoin_s: float = 0.0
    buffers: int = 1
    mixed: str = "false"
    checkpoint_every: int = 8
    on_missing: str = "skip"
    rule: dict[str, str] = field(default_factory=dict)
    slices: str = ""  # tables of the job, and of the agreement
    group: str = ""


def plain_world() -> World:
    """The demo's world, made once per run of tests."""
    return World(made_once("world", lambda path: make_world(path, DIGITS)))


@functools.cache
def identities() -> dict[str, Identity]:
    """Every party's unlocked identity."""
    world = plain_world()
    names = (*OWNERS, "lab", "cloud")
    return {
        name: load_identity(
            world.home(name).key, world.home(name).passphrase.read_text().strip()
        )
        for name in names
    }


def fresh_world(
    folder: Path, wishes: Wishes, joining: Sequence[Identity] = ()
) -> World:
    """A copy of the plain world with another recipe, job and agreement."""
    shutil.copytree(plain_world().path, folder, dirs_exist_ok=True)
    world = World(folder)
    change(world, wishes, joining)
    return world


def change(world: World, wishes: Wishes, joining: Sequence[Identity] = ()) -> None:
    """Another agreement for the same parties, and those who join, signed by all of them."""
    signers = identities() | {each.name: each for each in joining}
    for each in joining:
        (world.path / f"{each.name}.card.json").write_bytes(encode(each.card))
    recipe = wishes.recipe.replace("STEP_S = 0.0", f"STEP_S = {wishes.step_s}")
    (world.path / "recipe" / "recipe.py").write_text(recipe)
    write_job(world, wishes)
    document = world.path / "agreement.toml"
    text = (plain_world().path / "agreement.toml").read_text()
    for owner in set(OWNERS) - set(wishes.owners):
        text = re.sub(rf"\[\[\w+\]\]  # (?:owned by )?{owner}\n(?:.+\n)+", "", text)
    rule = {"min_holders": "1", "min_rows": "1", "min_owner_rows": "1"}
    rule |= {
        "baseline_alone": "false",
        "plans": json.dumps(sorted({wishes.plan, "local"})),
    }
    rule |= {"sync": '["round", "step"]', **wishes.rule}
    for name, value in rule.items():
        text, count = re.subn(rf"(?m)^{name} = [^#\n]*", f"{name} = {value} ", text)
        assert count == 1, name
    document.write_text(text + wishes.group)
    signed = compile_document(document, lambda path: read_card(path).resource)
    for party in signed.agreement.parties:
        signed = add_signature(signed, signers[party.name])
    save_signed(signed, world.agreement)


def agree_again(world: World, **terms: str) -> None:
    """Another agreement of a whole world, with these lines, signed by its parties."""
    document = world.path / "agreement.toml"
    text = document.read_text()
    for name, value in terms.items():
        text, count = re.subn(rf"(?m)^{name} = [^#\n]*", f"{name} = {value} ", text)
        assert count == 1, name
    document.write_text(text)
    signed = compile_document(document, lambda path: read_card(path).resource)
    for party in signed.agreement.parties:
        home = world.home(party.name)
        identity = load_identity(home.key, home.passphrase.read_text().strip())
        signed = add_signature(signed, identity)
    save_signed(signed, world.agreement)


def write_job(world: World, wishes: Wishes) -> None:
    """``job.toml``."""
    world.job.write_text(JOB.format(**vars(wishes)))


def train_here(
    world: World,
    sink: Sink = discard,
    *,
    products: Outsourcing | None = None,
    at: Callable[[Mapping[str, bytes], str], Workplace] = InPlace,
) -> LocalRun:
    """The job by the plan ``local``, in this process: what others are compared with."""
    job = read_job(world.job)
    agreement = verify(load_signed(world.agreement)).agreement
    files = load_bundle(Path(job.bundle), agreement.code)
    with ExitStack() as stack:
        readers, cards, keys = {}, {}, {}
        for resource in agreement.resources:
            home, name = world.home(resource.owner), resource.name
            vault = Vault.open(home.vault, identities()[resource.owner])
            keys[name] = stack.enter_context(closing(vault)).fetch(name)
            cards[name] = read_card(home.sealed / f"{name}.resource.json")
            reader = SealedFileReader(home.sealed / f"{name}.sealed", keys[name])
            readers[name] = stack.enter_context(closing(reader))
        rows = SealedTables(agreement, readers, cards, keys)
        return train_local(
            agreement,
            job.settings,
            at(files, agreement.code.entry),
            lend_rows=rows,
            sink=sink,
            products=products,
        )
