"""What a party keeps of a run, read from its folder for the page; nothing there is a key."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, TypeVar

from sealift.attest.policy import Appraiser
from sealift.data.schedule.visits import plan_here, plan_job
from sealift.errors import SealiftError
from sealift.events import wall_clock
from sealift.ids import Role
from sealift.release.agreement.phrases import count
from sealift.release.agreement.signed import (
    Equipment,
    VerifiedAgreement,
    load_verified,
    verify,
)
from sealift.release.files import read_whole
from sealift.release.log.heads import verify_log
from sealift.release.receipt import (
    RECEIPTS_SUFFIX,
    Receipt,
    SignedReceipt,
    instance_bound,
    read_receipts,
    receipts_in,
    verify_receipt,
)
from sealift.train.job.settings import JobTable, read_job
from sealift.train.output.runreceipt import RunReceipt, open_run, verify_run
from sealift.travel.peers import rank_names
from sealift.travel.visit.messages import MAX_RUN_RECEIPT_BYTES
from sealift.view.live import LiveRun
from sealift.view.livepage import AcceleratorEvidence, RunFiles
from sealift.view.report import see_run

UNJUDGED: Final = ("collateral-missing", "collateral-stale", "references-absent")
MAX_RECEIPTS: Final = 1000  # of visits: the latest
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
        self._table: JobTable | None = None
        self._verified: VerifiedAgreement | None = None
        self._visits: deque[Receipt] = deque(maxlen=MAX_RECEIPTS)
        self._ends: dict[Path, int] = {}  # of what was read of each file
        self._state: object = None
        self._kept = RunFiles()

    def keep(self, run: LiveRun) -> RunFiles:
        """Everything that is there."""
        self._table = self._table or self._job()
        if self._table is None:
            return RunFiles()
        agreement = Path(self._table.agreement)
        self._verified = self._verified or _attempt(partial(load_verified, agreement))
        if self._verified is None:
            return RunFiles()
        kept = self._papers(self._verified)
        planned, before = _planned(self._table, self._verified, run)
        names = {name for row in run.rows for name in row} - _NUMBERS
        level = run.level or next((each.level for each in kept.proofs), "")
        seen = None
        if level:
            document, rows = self._verified.agreement, run.rows
            seen = see_run(self._table, document, rows, level, metrics=names)
            holders = {each.holder for each in self._visits}
            if len(holders) == 1:  # an owner keeps receipts of its own rows alone
                seen = replace(seen, own=holders.pop())
        return replace(
            kept,
            planned=planned,
            before=before,
            seen=seen,
            level=level,
            people=rank_names(self._verified.agreement),
        )

    def _job(self) -> JobTable | None:
        for path in sorted(self._folder.glob("*.toml")):
            found = _attempt(partial(read_job, path))
            if found is not None and found.name == self._name:
                return found
        return None

    def _papers(self, verified: VerifiedAgreement) -> RunFiles:
        """Log and receipts, read again only where a file has changed."""
        visits = receipts_in(self._home / "receipts")[-MAX_RECEIPTS:]
        places = (self._home, self._home / "run")
        runs = [path for place in places for path in place.glob("receipt*.json")]
        log = self._home / "audit.db"
        growing = [path for path in visits if path.name.endswith(RECEIPTS_SUFFIX)]
        state = (len(visits), *map(_changed_at, (*growing, *runs, log)))
        if state != self._state:
            self._state = state
            self._read_visits(visits, verified)
            found = [*self._visits]
            papers = {"receipts of visits": _say_visits(found)} if found else {}
            papers |= _read_log(log)
            kept = RunFiles(papers=papers, proofs=tuple(_proofs(found, verified)))
            self._kept = _with_receipt(kept, runs, verified)
        return self._kept

    def _read_visits(self, paths: list[Path], verified: VerifiedAgreement) -> None:
        """The latest ones, and from then on those that were added."""
        for path in paths:
            if path not in self._ends:
                self._ends[path] = _start_of_last(path, MAX_RECEIPTS)
            with suppress(SealiftError):  # what does not parse is not read any further
                for signed, end in read_receipts(path, self._ends[path]):
                    self._ends[path] = end
                    receipt = _of_this_run(signed, verified)
                    if receipt is not None:
                        self._visits.append(receipt)


def _read_log(path: Path) -> dict[str, str]:
    report = _attempt(partial(verify_log, path)) if path.is_file() else None
    if report is None:
        return {}
    said = (
        f"{report.size:,} entries, {count(report.releases, 'release')}, "
        f"{count(report.refusals, 'refusal')}; root {report.root}"
    )
    return {"audit log": said}


def _with_receipt(
    kept: RunFiles, paths: list[Path], verified: VerifiedAgreement
) -> RunFiles:
    """With the newest receipt of a run under this agreement."""
    for path in sorted(paths, key=_changed_at, reverse=True):
        try:
            receipt = open_run(read_whole(path, MAX_RUN_RECEIPT_BYTES))
            if receipt.manifest.agreement != verified.digest:
                continue
            judged = _at(verify(receipt.agreement), receipt.made_at_s)
            lines = tuple(
                (each.name, each.said) for each in verify_run(receipt, judged)
            )
        except SealiftError as error:
            if error.code in UNJUDGED:
                said = "not verified here; use `sealift receipt verify --collateral`"
                return replace(kept, papers={**kept.papers, "receipt of the run": said})
            return replace(kept, refusal=f"{path.name}: {error} [{error.code}]")
        proofs = kept.proofs or (_proof_of(receipt, judged),)
        return replace(kept, receipt=lines, proofs=proofs)
    return kept


def _at(verified: VerifiedAgreement, at_s: int) -> VerifiedAgreement:
    until_s = min(float(at_s), wall_clock())  # never as of a future time
    return verified.equipped(Equipment(clock=lambda: until_s))


def _proof_of(receipt: RunReceipt, verified: VerifiedAgreement) -> AcceleratorEvidence:
    manifest = receipt.manifest
    bound = instance_bound(manifest.instance, verified.digest)
    claims = verified.appraiser().examine(manifest.evidence, bound)
    who = f"{Role.ACCELERATOR} of {verified.agreement.operator}"
    return AcceleratorEvidence(who, manifest.evidence, manifest.level, claims.checks)


def _proofs(
    visits: list[Receipt], verified: VerifiedAgreement
) -> Iterator[AcceleratorEvidence]:
    """One for each instance key that signed receipts here."""
    appraiser: Appraiser = verified.appraiser()
    for receipt in {each.instance: each for each in visits}.values():
        bound = instance_bound(receipt.instance, verified.digest)
        claims = _attempt(partial(appraiser.examine, receipt.evidence, bound))
        if claims is not None:
            who = f"{Role.ACCELERATOR} {receipt.instance.to_text()[:24]}…"
            yield AcceleratorEvidence(
                who, receipt.evidence, receipt.level, claims.checks
            )


def _of_this_run(signed: SignedReceipt, verified: VerifiedAgreement) -> Receipt | None:
    if signed.body.agreement != verified.digest:
        return None
    return _attempt(partial(verify_receipt, signed))


def _start_of_last(path: Path, lines: int) -> int:
    """Where the last so many lines of a file begin; 0 if it has no more."""
    try:
        with (
            path.open("rb") as file,
            mmap(file.fileno(), 0, access=ACCESS_READ) as text,
        ):
            place = text.rfind(b"\n")
            for _ in range(lines):
                place = text.rfind(b"\n", 0, max(0, place))
            return place + 1
    except (OSError, ValueError):  # it is empty
        return 0


def _say_visits(visits: list[Receipt]) -> str:
    scrubbed = sum(each.scrub.scrubbed_bytes for each in visits)
    left = sum(each.scrub.nonzero_bytes for each in visits)
    open_ = sum(not each.scrub.verified for each in visits)
    return (
        f"{len(visits):,}, of {sum(each.rows for each in visits):,} rows in all; "
        f"{scrubbed:,} bytes scrubbed, {left:,} not zero when read back"
        + (f"; {count(open_, 'scrub')} not verified" if open_ else "")
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


def _changed_at(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
