"""Make what a job of real processes starts from: parties, keys, sealed data, papers.

Everything is what users would make with the commands: the same functions, real files,
each party's secrets in its own folder. Passphrases are random and lie beside the keys,
which only a demo or a measurement may do.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from sealift.attest.level import Level
from sealift.attest.reference import TpmReferences
from sealift.codec import encode, to_plain
from sealift.crypto.identity import (
    Identity,
    create_identity,
    draw_passphrase,
    save_identity,
)
from sealift.crypto.keys import SecretKey
from sealift.data.schema.card import read_card
from sealift.data.schema.document import load_schema
from sealift.data.sealing import seal_table
from sealift.demo.cheating import TRIES
from sealift.demo.folder import (
    HOST,
    MODEL_OWNER,
    OPERATOR,
    OWNERS,
    SERVERS,
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
LEASE_S: Final = 60.0
HEARTBEAT_S: Final = 5.0  # a guest is emulated: a quote takes it 0.1 s and more
PARTS: Final[tuple[Part, ...]] = ("train", "heldout")
Plan = Literal["travel", "local", "ddp", "outsource"]
PLANS: Final[tuple[Plan, ...]] = get_args(Plan)
NOWHERE: Final = "127.0.0.1:0"  # until somebody listens
HostValues = Callable[[], TpmReferences]


@dataclass(frozen=True, slots=True)
class TaskSchedule:
    """The part of ``job.toml`` that suits what is learnt.

    Attributes:
        rows_per_visit: As many rows as the buffer takes.
        row_bytes: Of the tables' schema.
        rounds: Epochs where states are averaged after each; 0 for as many.
    """

    epochs: int
    batch_rows: int
    rows_per_visit: int
    row_bytes: int
    evaluate_every: int = 0
    checkpoint_every: int = 8
    rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTask:
    """One thing to learn together.

    Attributes:
        name: Of the agreement and the job.
        bundle: Folder that holds ``recipe.py``.
        write_tables: Writes OWNER/train.npz, heldout.npz and schema.toml into a folder.
        outsourced: The schedule where servers multiply; None for the same.
        baseline_alone: Whether each owner's own model is trained, too.
        record_bytes: Of sealed tables.
    """

    name: str
    bundle: Path
    write_tables: Callable[[Path], object]
    schedule: TaskSchedule
    outsourced: TaskSchedule | None = None
    owners: tuple[str, ...] = OWNERS
    baseline_alone: bool = True
    record_bytes: int = RECORD_BYTES
    cell_rows: int = CELL_ROWS

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What the output rule lets out."""
        return ("loss",)

    @property
    def recipe(self) -> bytes:
        """The code that everybody agrees on."""
        return (self.bundle / "recipe.py").read_bytes()


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
    work: DemoTask,
    travel: Travel = ONE_BUFFER,
    host: HostValues | None = None,
    plan: Plan = "travel",
) -> World:
    """Make everything that a job starts from.

    Args:
        path: The folder.
        work: What the parties learn together.
        travel: What agreement and job say about cargo.
        host: Reference values of the attested host that is rehearsed, asked for when
            all else is made; None agrees on a software key.
        plan: Of the job.

    Raises:
        UsageError: if the folder exists, is not empty and is no earlier demo's.
        UnavailableError: without the work's data, or if the disk refuses.
    """
    servers = SERVERS if plan == "outsource" else {}
    world = World(path, owners=work.owners, servers=servers)
    try:
        clear(path)
        identities = _settle(world, work)
        _agree(world, identities, work, travel, host, plan=plan)
        write_job(world, work, travel, plan)
        if host is not None:
            again = replace(work.schedule, epochs=AGAIN_EPOCHS)
            write_job(second_act(world), replace(work, schedule=again), travel, plan)
    except OSError as error:
        raise write_failed(path, error) from None
    return world


def second_act(world: World) -> World:
    """The same folder with a job that is to be stopped; made with an attested host."""
    return world.again("-again")


def _settle(world: World, work: DemoTask) -> dict[str, Identity]:
    """Every party's folder with a fresh identity, every owner's tables, the code."""
    # Deriving keys from passphrases and loading the rows take a second each.
    with ThreadPoolExecutor(len(world.parties)) as pool:
        made = {name: pool.submit(_move_in, world, name) for name in world.parties}
        work.write_tables(world.tables)
        identities = {name: each.result() for name, each in made.items()}
    for owner in work.owners:
        _seal(world, identities[owner], work)
    world.bundle.mkdir()
    (world.bundle / "recipe.py").write_bytes(work.recipe)
    return identities


def _move_in(world: World, name: str) -> Identity:
    home = world.home(name)
    home.sealed.mkdir(parents=True)
    identity, passphrase = create_identity(name), draw_passphrase()
    home.passphrase.touch(mode=0o600)
    home.passphrase.write_text(passphrase + "\n", encoding="utf-8")
    save_identity(identity, home.key, passphrase)
    write_whole(home.card, encode(identity.card))
    return identity


def _seal(world: World, identity: Identity, work: DemoTask) -> None:
    home, tables = world.home(identity.name), world.tables / identity.name
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
            record_bytes=work.record_bytes,
            cell_rows=work.cell_rows,
        )


def _agree(
    world: World,
    identities: Mapping[str, Identity],
    work: DemoTask,
    travel: Travel,
    host: HostValues | None,
    *,
    plan: Plan,
) -> None:
    """What `agreement new` writes, with what people would change in an editor; signed."""
    parties = (*work.owners, MODEL_OWNER, OPERATOR)
    cards = {
        f"{owner}/sealed/{owner}-{part}.resource.json": owner
        for owner in work.owners
        for part in PARTS
    }
    attesters = work.owners if plan == "ddp" else (HOST,)
    sealed = [read_card(world.path / card).resource for card in cards]
    starter = Starter(
        name=work.name,
        party_cards=[(f"{name}/party.card.json", name) for name in parties],
        resource_cards=list(cards.items()),
        bundle="recipe",
        entry="recipe.py",
        model_owner=MODEL_OWNER,
        operator=OPERATOR,
        attesters=[identities[name].public_key for name in attesters],
        enrollers=[identities[owner].public_key for owner in work.owners if host],
        now_s=time.time(),  # noqa: TID251 - the world begins here
        train_rows={each.owner: each.rows for each in sealed if each.part == "train"},
        rehearse=None if host is None else Level.ATTESTED_HOST,
    )
    text = _set_terms(
        starter.to_toml(),
        metrics=work.metric_names,
        baseline_alone=work.baseline_alone and plan in ("travel", "local"),
        plans=[plan] if plan == "local" else [plan, "local"],
        buffers=travel.buffers,
        mixed=travel.mixed,
    )
    if host is not None:
        text = _add_host(text, host())
    if plan == "ddp":
        text += f'\n[group]\nranks = {len(work.owners)}\nrows = "owner"\n'
    text += _share_servers(world.servers)
    document = world.path / "agreement.toml"
    document.write_text(text, encoding="utf-8")
    signed = compile_document(document, lambda path: read_card(path).resource)
    for name in (*parties, *world.servers.values()):
        signed = add_signature(signed, identities[name])
    save_signed(signed, world.agreement)


def _set_terms(document: str, **terms: object) -> str:
    """A starter document with other values, each on its one line, as in an editor."""
    for name, value in terms.items():
        line = rf"(?m)^{name} = \S.*?(?=$|   )"
        document, count = re.subn(line, f"{name} = {json.dumps(value)}", document)
        if count != 1:
            raise LookupError(f"the starter document has {count} lines for {name}")
    return document


def _share_servers(servers: Mapping[str, str]) -> str:
    """Three more parties, and which of the shares is whose."""
    if not servers:
        return ""
    parties = (
        f'\n[[parties]]  # {name}\ncard = "{name}/party.card.json"\n'
        'roles = ["share_server"]\n'
        for name in servers.values()
    )
    shares = (f'{share} = "{name}"\n' for share, name in servers.items())
    return "".join((*parties, "\n[servers]\n", *shares))


def _add_host(document: str, references: TpmReferences) -> str:
    """Ask for the evidence of one host, and for leases that suit it."""
    values = _inline(to_plain(references)).replace("\\", r"\\")
    for line, value in (
        (r"\[references\]$", f"[references]\ntpm = {values}"),
        (r"lease_s = [\d.]+(?=   )", f"lease_s = {LEASE_S}"),
        (r"heartbeat_s = [\d.]+(?=   )", f"heartbeat_s = {HEARTBEAT_S}"),
    ):
        document, count = re.subn(f"(?m)^{line}", value, document)
        if not count:
            raise LookupError(f"the starter document has no {line}")
    return document


def _inline(value: Any) -> str:
    """A value as TOML has it on one line; what is absent has its default."""
    match value:
        case dict():
            present = {name: each for name, each in value.items() if each is not None}
            pairs = (f"{json.dumps(k)} = {_inline(v)}" for k, v in present.items())
            return f"{{ {', '.join(pairs)} }}"
        case list() | tuple():
            return f"[{', '.join(map(_inline, value))}]"
        case _:
            return json.dumps(value)  # text, numbers and booleans are the same


def write_job(
    world: World, work: DemoTask, travel: Travel, plan: Plan = "travel"
) -> None:
    """The ``job.toml`` of an act."""
    schedule = (plan == "outsource" and work.outsourced) or work.schedule
    epochs = (plan == "ddp" and schedule.rounds) or schedule.epochs
    text = f"""\
name = "{work.name}{world.act}"
agreement = "agreement.json"
bundle = "recipe"
output = "run{world.act}"
orchestrator = "{NOWHERE}"
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
checkpoint_every = {schedule.checkpoint_every}
"""
    if plan == "ddp":
        text += f'\n[slices]\ncount = {len(work.owners)}\nrows = "owner"\n'
    if world.servers:
        places = (f'{share} = "{NOWHERE}"\n' for share in world.servers)
        text += "".join(("\n[servers]\n", *places, f"redo = {len(TRIES)}\n"))
    world.job.write_text(text, encoding="utf-8")
