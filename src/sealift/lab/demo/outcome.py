"""How a demo ended, and what of it verifies: by its owner, from what the parties kept.

Nothing here believes the processes that ran: the parties' files are verified with the
agreement alone, as a court would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sealift.crypto.identity import load_identity
from sealift.crypto.sign import PublicKey
from sealift.errors import IntegrityError, SealiftError
from sealift.lab.demo.rehearsal import Revocation
from sealift.lab.demo.tasks.task import ACCURACY, Sample, Task
from sealift.lab.demo.texts import say_bytes, say_s
from sealift.lab.worlds.folder import MODEL_OWNER, OWNERS, World
from sealift.lab.worlds.holders import BEYOND_LEASE, PREVIOUS_KEY, REPLAY
from sealift.lab.worlds.job import Plan, Travel
from sealift.lab.worlds.progress import AttackSeen, Progress, VisitSeen, timed_phases
from sealift.lab.worlds.roles import Run
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import VerifiedAgreement, load_verified
from sealift.release.equip import equip
from sealift.release.files import write_whole
from sealift.release.log.entries import Entry, SignedTreeHead
from sealift.release.log.heads import find_head, read_entries, verify_log
from sealift.release.receipt import Receipt, load_receipt, verify_receipt

if TYPE_CHECKING:
    from sealift.train.output.manifest import RunManifest

REHEARSAL_BAR_S: Final = 75.0
TOGETHER: Final = "together"
REFUSAL_OF: Final[Mapping[str, str]] = {
    REPLAY: "frame-order",
    BEYOND_LEASE: "outside-lease",
    PREVIOUS_KEY: "authentication",
}


@dataclass(frozen=True, slots=True)
class CheckedLog:
    """One owner's audit log, held against the heads that others kept.

    Attributes:
        kept_by: Parties whose kept head it continues.
        entries: Everything in it.
    """

    owner: str
    size: int
    releases: int
    refusals: int
    root: str
    kept_by: tuple[str, ...]
    entries: tuple[Entry, ...]


@dataclass(slots=True)
class Verdict:
    """What was checked after the run.

    Attributes:
        failures: What did not hold, one line each; empty if all of it did.
        agreement: What was signed, verified.
        manifest: What the run was, verified; None until the model was opened.
        parameters: Of the opened model.
        model_bytes: Of the sealed model, as it lies on the disk.
    """

    logs: list[CheckedLog] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    agreement: Agreement | None = None
    manifest: RunManifest | None = None
    parameters: int = 0
    model_bytes: int = 0
    log_verified: bool = False
    receipts_verified: bool = False
    scrub_verified: bool = False
    model_verified: bool = False

    @property
    def _keepers(self) -> str:
        shown = any("the manifest" in log.kept_by for log in self.logs)
        return "the signed manifest" if shown else "the other owners"

    @property
    def checks(self) -> list[tuple[bool, str]]:
        """What was verified from what the parties kept, and whether it held."""
        entries = sum(log.size for log in self.logs)
        scrubbed = sum(receipt.scrub.scrubbed_bytes for receipt in self.receipts)
        return [
            (
                self.log_verified,
                f"audit logs of {len(self.logs)} owners, {entries} entries: each "
                f"continues the heads that {self._keepers} kept",
            ),
            (
                self.receipts_verified,
                f"{len(self.receipts)} receipts, one per visit: signature, evidence, "
                "content, log heads",
            ),
            (
                self.scrub_verified,
                f"{len(self.receipts)} scrub reports: {say_bytes(scrubbed)} "
                "overwritten, read back as zero",
            ),
            (
                self.model_verified,
                f"the model of {self.parameters:,} parameters, opened with its owner's "
                "key: the weights of the signed manifest",
            ),
        ]


class Model(NamedTuple):
    """One model's results.

    Attributes:
        name: ``north alone``, ``together``.
        style: Whose colour it has.
        metrics: Means over all held-out rows.
        share: Of its bar that is full.
    """

    name: str
    style: str
    metrics: dict[str, float]
    share: float


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Everything about one demo.

    Attributes:
        together: The joint model's metrics, means over all held-out rows.
        alone: The same of each owner's own model, on the same rows.
        seconds: From the command's start to the end of the last check.
        roles_up_s: From the command's start until every role was there.
        revocation: What the second act of a rehearsal led to.
        sample: What the opened model writes, where the task has it write.
    """

    task: Task
    travel: Travel
    plan: Plan
    level: str
    together: dict[str, float]
    alone: dict[str, dict[str, float]]
    weights: str
    progress: Progress
    verdict: Verdict
    world: World
    world_s: float
    roles_up_s: float
    seconds: float
    sample: Sample | None = None
    revocation: Revocation | None = None

    @property
    def sandbox(self) -> str:
        """What kept the recipe in; by the signed manifest, where there is one."""
        manifest = self.verdict.manifest
        return manifest.sandbox if manifest else self.progress.sandbox

    @property
    def bar_s(self) -> float:
        """What all of it should take at most on two cores."""
        return self.task.bar_s if self.revocation is None else REHEARSAL_BAR_S

    @property
    def models(self) -> list[Model]:
        """Each owner's own model and the joint one, with bars on one scale."""
        found = [(f"{owner} alone", owner, each) for owner, each in self.alone.items()]
        found.append((TOGETHER, "joint", self.together))
        headline = self.task.headline
        full = headline.full_scale([each[headline.name] for *_, each in found])
        return [Model(*each, each[2][headline.name] / full) for each in found]

    @property
    def attacks(self) -> list[AttackSeen]:
        """What was tried."""
        return self.progress.attacks

    @property
    def refused(self) -> list[AttackSeen]:
        """What was refused, for the right reason."""
        return [attack for attack in self.attacks if was_refused(attack)]

    def to_plain(self) -> dict[str, Any]:
        """The one line of ``--json``; null where the plan has no such thing."""
        kept, verdict, stopped = self.plan != "local", self.verdict, self.revocation
        return {
            "seconds": round(self.seconds, 2),
            "accuracy_joint": self.together[ACCURACY],
            "accuracy_alone": [each[ACCURACY] for each in self.alone.values()],
            "attacks_refused": len(self.refused),
            "attacks_tried": len(self.attacks),
            "log_verified": verdict.log_verified if kept else None,
            "scrub_verified": verdict.scrub_verified if kept else None,
            "receipts": len(verdict.receipts),
            "level": self.level,
            "revocation_s": round(stopped.last_byte_s, 3) if stopped else None,
            "revocation_rules": stopped.rules if stopped else None,
            "task": self.task.name,
            "report": str(self.world.report),
            "roles_up_s": round(self.roles_up_s, 2),
            "weights": self.weights,
        }


def was_refused(attack: AttackSeen) -> bool:
    """Refused, and for the right reason."""
    return REFUSAL_OF[attack.name] == attack.reason


def phase_table(progress: Progress) -> tuple[list[str], list[list[str]]]:
    """Columns, and a row an owner of medians of a visit; the last one adds all up."""
    verified = progress.verified
    names = timed_phases(verified)

    def row(
        name: str, visits: list[VisitSeen], merge: Callable[[list[float]], float]
    ) -> list[str]:
        times = [
            [visit.phases_s.get(phase, 0.0) for visit in visits] for phase in names
        ]
        times.append([sum(visit.phases_s.values()) for visit in visits])
        sealed = say_bytes(round(merge([float(each.sealed_bytes) for each in visits])))
        return [name, str(len(visits)), *map(say_s, map(merge, times)), sealed]

    by_owner = ((name, [v for v in verified if v.holder == name]) for name in OWNERS)
    rows = [row(owner, own, median) for owner, own in by_owner if own]
    heads = ["median", "visits", *names, "whole", "sealed"]
    return heads, [*rows, row("in all", verified, sum)]


def check_run(world: World, run: Run, *, now: Callable[[], float]) -> Verdict:
    """Check everything that the parties keep of a run; failures are collected.

    Args:
        world: Made by ``make_world``.
        run: What was told of it.
        now: Seconds since 1970, to judge certificates at.
    """
    verified = equip(load_verified(world.agreement), clock=now)
    verdict = Verdict(agreement=verified.agreement)
    visits = {visit.visit for visit in run.progress.verified}
    return _checked(
        verdict,
        {
            "attacks": lambda: _check_attacks(run.progress),
            "logs": lambda: _check_logs(world, verified, verdict),
            "receipts": lambda: _check_receipts(world, verified, verdict, visits),
            "model": lambda: _check_model(world, verified, verdict, run),
        },
    )


def check_rounds(world: World, run: Run, *, now: Callable[[], float]) -> Verdict:
    """The same of a run whose ranks were the owners' own; the manifest shows all heads."""
    verified = equip(load_verified(world.agreement), clock=now)
    verdict = Verdict(agreement=verified.agreement)
    return _checked(
        verdict,
        {
            "model": lambda: _check_model(world, verified, verdict, run),
            "logs": lambda: _check_shown_logs(world, verified, verdict),
            "receipts": lambda: _check_receipts(world, verified, verdict, None),
        },
    )


def _checked(verdict: Verdict, checks: Mapping[str, Callable[[], None]]) -> Verdict:
    for name, check in checks.items():
        try:
            check()
        except SealiftError as error:
            verdict.failures.append(f"{name}: {error}")
    return verdict


def _check_attacks(progress: Progress) -> None:
    found = {attack.name: attack.reason for attack in progress.attacks}
    for name, expected in REFUSAL_OF.items():
        if found.get(name) != expected:
            raise IntegrityError(
                f"the attack {name} was not refused as it must be",
                why=f"expected {expected}, found {found.get(name) or 'nothing'}",
                code="attack-succeeded",
            )


def _check_logs(world: World, verified: VerifiedAgreement, verdict: Verdict) -> None:
    """Each owner's log continues the heads that the other owners kept."""
    for owner in OWNERS:
        path, key = world.home(owner).log, verified.party(owner).sign
        others = tuple(name for name in OWNERS if name != owner)
        heads = [find_head(world.home(other).heads, key) for other in others]
        verdict.logs.append(
            _check_log(owner, key, path, dict(zip(others, heads, strict=True)))
        )
    verdict.log_verified = True


def _check_shown_logs(
    world: World, verified: VerifiedAgreement, verdict: Verdict
) -> None:
    """Each owner's log continues the head in the manifest, and shows the release to its rank."""
    from sealift.train.output.manifest import head_of, prove_releases

    assert verdict.manifest is not None, "the model was opened"
    for owner in OWNERS:
        path, key = world.home(owner).log, verified.party(owner).sign
        head = head_of(verdict.manifest, key)
        log = _check_log(owner, key, path, {"the manifest": head})
        prove_releases(verdict.manifest, key, log.entries)
        verdict.logs.append(log)
    verdict.log_verified = True


def _check_log(
    owner: str, key: PublicKey, path: Path, heads: Mapping[str, SignedTreeHead | None]
) -> CheckedLog:
    """A log that continues every head that others kept of it."""
    report = [verify_log(path, head) for head in heads.values()][-1]
    if report.owner != key:
        raise IntegrityError(f"{owner}'s log has another key", code="other-log")
    return CheckedLog(
        owner=owner,
        size=report.size,
        releases=report.releases,
        refusals=report.refusals,
        root=report.root.to_text(),
        kept_by=tuple(heads),
        entries=tuple(read_entries(path)),
    )


def _check_receipts(
    world: World,
    verified: VerifiedAgreement,
    verdict: Verdict,
    visits: set[str] | None,
) -> None:
    """One for each visit; where there were none, for each of its owner's uses of rows."""
    for owner in OWNERS:
        for path in sorted(world.home(owner).receipts.iterdir()):
            verdict.receipts.append(verify_receipt(load_receipt(path), verified))
    kept = {receipt.visit.to_text() for receipt in verdict.receipts}
    if visits is None:
        visits = kept if len({each.holder for each in verdict.receipts}) == 3 else set()
    if kept != visits:
        raise IntegrityError(
            "receipts and visits differ",
            why=f"{len(kept)} receipts, {len(visits)} visits",
            code="receipts-missing",
        )
    verdict.receipts_verified = True
    # verify_receipt refuses a receipt whose scrub left anything.
    verdict.scrub_verified = all(receipt.scrub.verified for receipt in verdict.receipts)


def _check_model(
    world: World, verified: VerifiedAgreement, verdict: Verdict, run: Run
) -> None:
    """Opened by its owner, with the passphrase that only a demo leaves beside the key."""
    from sealift.train.output.opening import open_output  # torch
    from sealift.train.output.sealing import MODEL_NAME

    home = world.home(MODEL_OWNER)
    identity = load_identity(home.key, home.passphrase.read_text("utf-8").strip())
    opened = open_output(world.run, identity, verified)
    if opened.weights.to_text() != run.result["weights"]:
        raise IntegrityError(
            "the orchestrator told other weights", code="weights-differ"
        )
    write_whole(world.model, opened.content)
    verdict.parameters, verdict.manifest = opened.parameters, opened.manifest
    verdict.model_bytes = (world.run / MODEL_NAME).stat().st_size
    verdict.model_verified = True
