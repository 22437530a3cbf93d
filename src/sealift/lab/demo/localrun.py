"""The ``local`` plan of the demo: one process, one loop, the same schedule.

The reference that ``travel`` must equal bit for bit. One person holds every key here,
which this plan demands and a demo may do.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from sealift.channel.record.sealedfile import SealedFileReader
from sealift.data.schema.card import CARD_SUFFIX, SEALED_SUFFIX, read_card
from sealift.events import Event
from sealift.lab.demo.checks import unlock
from sealift.lab.demo.progress import Progress
from sealift.lab.demo.travelrun import TravelRun, Watch, count_visits
from sealift.lab.worlds.folder import OWNERS, World
from sealift.release.agreement import Agreement
from sealift.release.bundle import load_bundle
from sealift.release.files import write_whole
from sealift.release.signed import load_verified
from sealift.release.stores import opened_vault
from sealift.train.eventlines import RoleEvent
from sealift.train.joint import joint_training
from sealift.train.plans.local import SealedRows, mean_of_parts, run_local
from sealift.train.settings import read_job
from sealift.train.tensors import pack_tensors
from sealift.train.worker.workshop import Workshop
from sealift.travel.state import Clock


def run_alone(world: World, watch: Watch, *, clock: Clock) -> TravelRun:
    """Run every planned slice in this process.

    Args:
        world: Made by ``make_world``.
        watch: Called after every slice.
        clock: Monotonic seconds.

    Raises:
        SealiftError: if a file is not the agreed one, or the recipe fails.
    """
    agreement = load_verified(world.agreement).agreement
    job, progress = read_job(world.job), Progress(count_visits(world))
    progress.gathered_s = progress.ready_s = clock()

    def sink(event: Event) -> None:
        told = RoleEvent("local", clock(), event.kind, event.fields)
        progress.take(told)
        watch(progress, told)

    with ExitStack() as stack:
        files = load_bundle(Path(job.bundle), agreement.code)
        workshop = stack.enter_context(Workshop(files, agreement.code.entry))
        training = joint_training(agreement, workshop, job.training)
        heldout = run_local(
            agreement,
            job.settings,
            training,
            read_rows=_rows(world, agreement, stack),
            sink=sink,
        )
    write_whole(world.model, pack_tensors(training.state()))
    metrics = mean_of_parts(agreement, heldout)
    weights = training.digest().to_text()
    return TravelRun(progress, {"weights": weights, "metrics": metrics})


def _rows(world: World, agreement: Agreement, stack: ExitStack) -> SealedRows:
    """Every resource, opened with the keys of all owners."""
    readers, cards, keys = {}, {}, {}
    for owner in OWNERS:
        home = world.home(owner)
        vault = stack.enter_context(opened_vault(home.vault, unlock(home)))
        for resource in agreement.resources_of(owner):
            name = resource.name
            keys[name] = vault.fetch(name)
            cards[name] = read_card(home.sealed / f"{name}{CARD_SUFFIX}")
            reader = SealedFileReader(
                home.sealed / f"{name}{SEALED_SUFFIX}", keys[name]
            )
            readers[name] = stack.enter_context(closing(reader))
    return SealedRows(agreement, readers, cards, keys)
