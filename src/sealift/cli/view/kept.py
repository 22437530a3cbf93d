"""What a party keeps of a run, read from its folder for the page; nothing there is a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sealift.attest.policy import Appraiser
from sealift.cli.view.report import see_run
from sealift.data.schedule.visits import plan_here, plan_job
from sealift.errors import SealiftError
from sealift.ids import Role
from sealift.release.agreement.explain import count
from sealift.release.agreement.signed import (
    Equipment,
    VerifiedAgreement,
    load_verified,
    verify,
)
from sealift.release.files import read_whole
from sealift.release.log.heads import verify_log
from sealift.release.receipt import (
    Receipt,
    instance_bound,
    load_receipt,
    verify_receipt,
)
from sealift.train.job.settings import JobTable, read_job
from sealift.train.output.runreceipt import RunReceipt, open_run, verify_run
from sealift.travel.visit.messages import MAX_RUN_RECEIPT_BYTES, RUN_RECEIPT_NAME
from sealift.view.live import LiveRun
from sealift.view.livepage import Kept, Proof

MAX_RECEIPTS: Final = 2000  # of visits, that are read each time
_NUMBERS: Final = frozenset({"purpose", "epoch", "owner", "table", "rows"})
T = TypeVar("T")


class Papers:
    """Reads a folder again when something in it has changed.

    Args:
        folder: Where the job lies.
        job: Its name.
        home: Where receipts and log lie; in the same folder, if nothing is said.
    """

    def __init__(self, folder: Path, job: str, home: Path | None = None) -> None:
        self._folder, self._name, self._home = folder, job, home or folder
        self._read: dict[str, tuple[object, Kept]] = {}

    def keep(self, run: LiveRun) -> Kept:
        """Everything that is there."""
        table = self._job()
        if table is None:
            return Kept()
        verified = _attempt(partial(load_verified, Path(table.agreement)))
        if verified is None:
            return Kept()
        kept = self._unless_same(verified, run)
        planned, before = _planned(table, verified, run)
        names = {name for row in run.rows for name in row} - _NUMBERS
        level = run.level or next((each.level for each in kept.proofs), "")
        seen = None
        if level:
            seen = see_run(table, verified.agreement, run.rows, level, metrics=names)
        return replace(kept, planned=planned, before=before, seen=seen, level=level)

    def _job(self) -> JobTable | None:
        for path in sorted(self._folder.glob("*.toml")):
            found = _attempt(partial(read_job, path))
            if found is not None and found.name == self._name:
                return found
        return None

    def _unless_same(self, verified: VerifiedAgreement, run: LiveRun) -> Kept:
        """Logs and receipts, read again only where files have changed."""
        files = [*self._receipts(), *self._logs(), *self._run_receipts()]
        state = tuple((path, _changed_at(path)) for path in files)
        known = self._read.get("papers")
        if known is not None and known[0] == state:
            return known[1]
        kept = self._gather(verified, run)
        self._read["papers"] = (state, kept)
        return kept

    def _receipts(self) -> list[Path]:
        return sorted(self._home.glob("receipts/**/*.receipt.json"))[-MAX_RECEIPTS:]

    def _logs(self) -> list[Path]:
        return [p for p in (self._home / "audit.db",) if p.is_file()]

    def _run_receipts(self) -> list[Path]:
        places = (self._home, self._home / "run")
        found = [place / RUN_RECEIPT_NAME for place in places]
        return [path for path in found if path.is_file()][:1]

    def _gather(self, verified: VerifiedAgreement, run: LiveRun) -> Kept:
        papers: dict[str, str] = {}
        visits = list(_of_this_run(self._receipts(), verified))
        if visits:
            papers["receipts of visits"] = _say_visits(visits)
        for path in self._logs():
            report = _attempt(partial(verify_log, path))
            if report is not None:
                papers["audit log"] = (
                    f"{count(report.size, 'entry').replace('entrys', 'entries')}, "
                    f"{count(report.releases, 'release')}, "
                    f"{count(report.refusals, 'refusal')}; root {report.root}"
                )
        kept = Kept(papers=papers, proofs=tuple(_proofs(visits, verified)))
        for path in self._run_receipts():
            kept = _with_receipt(kept, path, verified)
        return kept


def _with_receipt(kept: Kept, path: Path, verified: VerifiedAgreement) -> Kept:
    try:
        raw = read_whole(path, MAX_RUN_RECEIPT_BYTES)
        receipt = open_run(raw)
        if receipt.manifest.agreement != verified.digest:
            return kept  # of an earlier run in this folder
        judged = _at(verify(receipt.agreement), receipt.made_at_s)
        lines = tuple((each.name, each.said) for each in verify_run(receipt, judged))
    except SealiftError as error:
        return replace(kept, refusal=f"{error} [{error.code}]")
    proofs = kept.proofs or (_proof_of(receipt, judged),)
    return replace(kept, receipt=lines, proofs=proofs)


def _at(verified: VerifiedAgreement, at_s: int) -> VerifiedAgreement:
    return verified.equipped(Equipment(clock=lambda: float(at_s)))


def _proof_of(receipt: RunReceipt, verified: VerifiedAgreement) -> Proof:
    manifest = receipt.manifest
    bound = instance_bound(manifest.instance, verified.digest)
    claims = verified.appraiser().examine(manifest.evidence, bound)
    who = f"{Role.ACCELERATOR} of {verified.agreement.operator}"
    return Proof(who, manifest.evidence, manifest.level, claims.checks)


def _proofs(visits: list[Receipt], verified: VerifiedAgreement) -> Iterator[Proof]:
    """One for each instance key that signed receipts here."""
    appraiser: Appraiser = verified.appraiser()
    for receipt in {each.instance: each for each in visits}.values():
        bound = instance_bound(receipt.instance, verified.digest)
        claims = _attempt(partial(appraiser.examine, receipt.evidence, bound))
        if claims is not None:
            who = f"{Role.ACCELERATOR} {receipt.instance.to_text()[:24]}…"
            yield Proof(who, receipt.evidence, receipt.level, claims.checks)


def _of_this_run(paths: list[Path], verified: VerifiedAgreement) -> Iterator[Receipt]:
    for path in paths:
        signed = _attempt(partial(load_receipt, path))
        if signed is None or signed.body.agreement != verified.digest:
            continue
        with suppress(SealiftError):
            yield verify_receipt(signed)


def _say_visits(visits: list[Receipt]) -> str:
    scrubbed = sum(each.scrub.scrubbed_bytes for each in visits)
    left = sum(each.scrub.nonzero_bytes for each in visits)
    return (
        f"{len(visits)}, of {sum(each.rows for each in visits)} rows in all; "
        f"{scrubbed} bytes scrubbed, {left} not zero when read back"
    )


def _planned(
    job: JobTable, verified: VerifiedAgreement, run: LiveRun
) -> tuple[int, int]:
    """Units of the plan, and those done before work began; (0, 0) if nobody knows."""
    resources, visits = verified.agreement.resources, job.settings.visits
    if job.plan == "ddp":
        return len(list(visits.passes())), run.position
    if job.plan == "local":
        return sum(len(group.stops) for group in plan_here(resources, visits)), 0
    if not run.buffer_bytes:
        return 0, 0
    plan = plan_job(resources, visits, run.buffer_bytes)
    sizes = [len(group.stops) for group in plan]
    return sum(sizes), sum(sizes[: run.position])


def _attempt(read: Callable[[], T]) -> T | None:
    """What is there and can be read; it may be half written now."""
    try:
        return read()
    except SealiftError:
        return None


def _changed_at(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
