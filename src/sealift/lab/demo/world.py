"""Make the demo's world: parties, keys, sealed data, one agreement signed by all, a job.

Everything is what users would make with the commands: the same functions, real files,
each party's secrets in its own folder. Passphrases are random and lie beside the keys,
which only a demo may do.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, Literal

from sealift.attest.level import Level
from sealift.attest.tpm.references import TpmReferences
from sealift.codec import encode
from sealift.crypto.identity import Identity, create_identity, save_identity
from sealift.crypto.keys import SecretKey
from sealift.data.schema.card import read_card
from sealift.data.schema.document import load_schema
from sealift.data.seal.seal import seal_table
from sealift.lab.demo.rehearsal import add_host_terms
from sealift.lab.demo.tasks.digits import DIGITS
from sealift.lab.demo.tasks.task import Task
from sealift.lab.worlds.folder import (
    HOST,
    MODEL_OWNER,
    OPERATOR,
    OWNERS,
    PARTIES,
    Home,
    World,
    clear,
)
from sealift.release.agreement import Part
from sealift.release.agreement.document import compile_document
from sealift.release.agreement.signed import add_signature, save_signed
from sealift.release.agreement.starter import Starter
from sealift.release.broker.stores import keep_keys
from sealift.release.files import write_failed, write_whole

CELL_ROWS: Final = 16  # of few rows, so that a visit may be short
RECORD_BYTES: Final = 16 << 10  # small, so that a visit has several records
AGAIN_EPOCHS: Final = 200  # so many that the second act is over before
PARTS: Final[tuple[Part, ...]] = ("train", "heldout")
Plan = Literal["travel", "local"]
HostValues = Callable[[], TpmReferences]


@dataclass(frozen=True, slots=True)
class Travel:
    """What agreement and job say about cargo.

    Attributes:
        buffers: 2: the next owner's rows load while one owner's are trained on.
        mixed: Draw batches across the rows of all owners.
    """

    buffers: Literal[1, 2] = 1
    mixed: bool = False


ONE_BUFFER: Final = Travel()


def make_world(
    path: Path,
    task: Task = DIGITS,
    travel: Travel = ONE_BUFFER,
    host: HostValues | None = None,
    plan: Plan = "travel",
) -> World:
    """Make everything that a job starts from.

    Args:
        path: The folder.
        task: What the parties learn together.
        travel: What agreement and job say about cargo.
        host: Reference values of the attested host that is rehearsed, asked for when
            all else is made; None agrees on a software key.
        plan: Of the job.

    Raises:
        UsageError: if the folder exists, is not empty and is no earlier demo's.
        UnavailableError: without the task's data, or if the disk refuses.
    """
    try:
        clear(path)
        return _fill(World(path), task, travel, host, plan)
    except OSError as error:
        raise write_failed(path, error) from None


def second_act(world: World) -> World:
    """The same folder with a job that is to be stopped; made with an attested host."""
    return World(world.path, "-again")


def _fill(
    world: World, task: Task, travel: Travel, host: HostValues | None, plan: Plan
) -> World:
    # Deriving keys from passphrases and loading the rows take a second each.
    with ThreadPoolExecutor(len(PARTIES)) as pool:
        made = {name: pool.submit(_settle, world.home(name), name) for name in PARTIES}
        task.write_tables(world.tables)
        identities = {name: each.result() for name, each in made.items()}
    for owner in OWNERS:
        _seal(world.home(owner), identities[owner], world.tables / owner)
    recipe = resources.files("sealift.lab.demo") / task.bundle / "recipe.py"
    world.bundle.mkdir()
    (world.bundle / "recipe.py").write_bytes(recipe.read_bytes())
    _agree(world, identities, task, travel, host)
    epochs = task.schedule.epochs
    world.job.write_text(_job(world, task, travel, plan, epochs), encoding="utf-8")
    if host is not None:
        again = second_act(world)
        endless = _job(again, task, travel, plan, AGAIN_EPOCHS)
        again.job.write_text(endless, encoding="utf-8")
    return world


def _settle(home: Home, name: str) -> Identity:
    """A party's folder with a fresh identity."""
    home.path.mkdir(parents=True)
    home.sealed.mkdir()
    identity, passphrase = create_identity(name), secrets.token_urlsafe(18)
    home.passphrase.touch(mode=0o600)
    home.passphrase.write_text(passphrase + "\n", encoding="utf-8")
    save_identity(identity, home.key, passphrase)
    write_whole(home.card, encode(identity.card))
    return identity


def _seal(home: Home, identity: Identity, tables: Path) -> None:
    schema = load_schema(tables / "schema.toml")
    for part in PARTS:
        name, key = f"{identity.name}-{part}", SecretKey.generate()
        keep_keys(home.vault, identity, {name: key})
        seal_table(
            tables / f"{part}.npz",
            schema,
            name=name,
            part=part,
            owner=identity.name,
            key=key,
            out_dir=home.sealed,
            record_bytes=RECORD_BYTES,
            cell_rows=CELL_ROWS,
        )


def _agree(
    world: World,
    identities: Mapping[str, Identity],
    task: Task,
    travel: Travel,
    host: HostValues | None,
) -> None:
    """What `agreement new` writes, with what people would change in an editor; signed."""
    parties = (*OWNERS, MODEL_OWNER, OPERATOR)
    cards = {
        f"{owner}/sealed/{owner}-{part}.resource.json": owner
        for owner in OWNERS
        for part in PARTS
    }
    sealed = [read_card(world.path / card).resource for card in cards]
    starter = Starter(
        name=task.name,
        party_cards=[(f"{name}/party.card.json", name) for name in parties],
        resource_cards=list(cards.items()),
        bundle="recipe",
        entry="recipe.py",
        model_owner=MODEL_OWNER,
        operator=OPERATOR,
        attesters=[identities[HOST].public_key],
        now_s=time.time(),  # noqa: TID251 - the demo begins here
        train_rows={each.owner: each.rows for each in sealed if each.part == "train"},
        rehearse=None if host is None else Level.ATTESTED_HOST,
    )
    text = starter.to_toml()
    for name, value in {
        "metrics": json.dumps(task.metric_names),
        "baseline_alone": "true",
        "buffers": str(travel.buffers),
        "mixed": json.dumps(travel.mixed),
    }.items():
        line = rf"(?m)^{name} = \S.*?(?=$|   )"
        text, count = re.subn(line, f"{name} = {value}", text)
        assert count == 1, f"the starter document has one line for {name}"
    if host is not None:
        enrollers = tuple(identities[owner].public_key for owner in OWNERS)
        text = add_host_terms(text, host(), enrollers)
    document = world.path / "agreement.toml"
    document.write_text(text, encoding="utf-8")
    signed = compile_document(document, lambda path: read_card(path).resource)
    for name in parties:
        signed = add_signature(signed, identities[name])
    save_signed(signed, world.agreement)


def _job(world: World, task: Task, travel: Travel, plan: Plan, epochs: int) -> str:
    schedule = task.schedule
    return f"""\
name = "{task.name}{world.act}"
agreement = "agreement.json"
bundle = "recipe"
output = "run{world.act}"
orchestrator = "127.0.0.1:0"
plan = "{plan}"

[training]
epochs = {epochs}
batch_rows = {schedule.batch_rows}
seed = 7
threads = 1
evaluate_every = {schedule.evaluate_every}

[travel]
buffers = {travel.buffers}
mixed = {json.dumps(travel.mixed)}
buffer_bytes = {schedule.rows_per_visit * schedule.row_bytes}
on_missing = "wait"
attempts = 10

[run]
patience = "lan"
"""
