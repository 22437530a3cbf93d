"""How a demo ended: what was learnt, what was tried, what verified (``checks``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sealift.demo.cheating import OLD_ANSWER, ONE_NUMBER, ZEROS
from sealift.demo.folder import OWNERS, World
from sealift.demo.holders import BEYOND_LEASE, PREVIOUS_KEY, REPLAY
from sealift.demo.job import HEARTBEAT_S, Plan, Travel
from sealift.demo.progress import AttackSeen, Progress, VisitSeen, timed_phases
from sealift.demo.tasks import ACCURACY, Sample, ShownTask
from sealift.release.agreement import Agreement
from sealift.release.broker.messages import HEARTBEAT_MISSING
from sealift.release.log.entries import Entry
from sealift.release.receipt import Receipt
from sealift.view.markup import say_bytes, say_s

if TYPE_CHECKING:
    from sealift.train.output.manifest import RunManifest

REHEARSAL_BAR_S: Final = 75.0
BOUND_S: Final = HEARTBEAT_S + 1.0  # until the last byte after a bad act
OUTSOURCE_BAR_S: Final = 60.0
TOGETHER: Final = "together"
REFUSAL_OF: Final[Mapping[str, str]] = {
    REPLAY: "frame-order",
    BEYOND_LEASE: "outside-lease",
    PREVIOUS_KEY: "authentication",
    **dict.fromkeys((ONE_NUMBER, OLD_ANSWER, ZEROS), "wrong-product"),
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
class DemoVerdict:
    """What was checked after the run.

    Attributes:
        failures: What did not hold, one line each; empty if all of it did.
        agreement: What was signed, verified.
        manifest: What the run was, verified; None until the model was opened.
        parameters: Of the opened model.
        model_bytes: Of the sealed model, as it lies on the disk.
        wrong_answers: That were noted with their server's signature of the step.
    """

    logs: list[CheckedLog] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    agreement: Agreement | None = None
    manifest: RunManifest | None = None
    parameters: int = 0
    model_bytes: int = 0
    wrong_answers: int = 0
    log_verified: bool = False
    receipts_verified: bool = False
    scrub_verified: bool = False
    model_verified: bool = False
    wrong_verified: bool = False

    @property
    def _keepers(self) -> str:
        shown = any("the manifest" in log.kept_by for log in self.logs)
        return "the signed manifest" if shown else "the other owners' records"

    @property
    def checks(self) -> list[tuple[bool, str]]:
        """What was verified from what the parties kept, and whether it held."""
        entries = sum(log.size for log in self.logs)
        scrubbed = sum(receipt.scrub.scrubbed_bytes for receipt in self.receipts)
        wrong = (
            self.wrong_verified,
            f"{self.wrong_answers} records of wrong products, each signed by the server that "
            "it names",
        )
        return [
            *((wrong,) if self.wrong_answers else ()),
            (
                self.log_verified,
                f"audit logs of {len(self.logs)} owners, {entries:,} entries: each continues "
                f"the heads in {self._keepers}",
            ),
            (
                self.receipts_verified,
                f"{len(self.receipts):,} receipts, one for each visit: signature, evidence, "
                "content, log heads",
            ),
            (
                self.scrub_verified,
                f"{len(self.receipts):,} scrub reports: {say_bytes(scrubbed)} "
                "overwritten and read back as zeros",
            ),
            (
                self.model_verified,
                f"the model, {self.parameters:,} parameters, decrypted by its owner: its "
                "weights are those of the signed manifest",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """What a bad act led to.

    Attributes:
        path: What the host's measurement list shows of it.
        rules: Why brokers revoked the lease, by owner; to those that are not named the
            accelerator gave its lease back when it lost another one.
        last_byte_s: Seconds from the act until the last frame of any holder.
        frames_after: Frames that still flowed in that time.
        scrubbed_bytes: Overwritten by the accelerator in visits that came to nothing.
        ended_s: Seconds from the act until the accelerator's process had ended.
    """

    path: str
    rules: dict[str, str]
    last_byte_s: float
    frames_after: int
    scrubbed_bytes: int
    ended_s: float

    def say_stop(self) -> str:
        """When the last byte flowed, in words."""
        if not self.frames_after:
            return "no byte flowed after the act"
        return f"the last byte flowed {self.last_byte_s:.2f} s after the act"

    @property
    def held(self) -> bool:
        """Whether an owner saw it and revoked, and the flow stopped in time."""
        seen = any(rule != HEARTBEAT_MISSING for rule in self.rules.values())
        return seen and self.last_byte_s <= BOUND_S


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

    task: ShownTask
    travel: Travel
    plan: Plan
    level: str
    together: dict[str, float]
    alone: dict[str, dict[str, float]]
    weights: str
    progress: Progress
    verdict: DemoVerdict
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
        if self.plan == "outsource":
            return OUTSOURCE_BAR_S
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
