"""How a demo ended: what the summary prints, `--json` tells and the report draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from sealift.lab.demo.progress import AttackSeen, Progress
from sealift.lab.demo.secondact import Revocation
from sealift.lab.demo.tasks.task import ACCURACY, Sample, Task
from sealift.lab.demo.world import Travel
from sealift.lab.worlds.holders import BEYOND_LEASE, PREVIOUS_KEY, REPLAY
from sealift.release.agreement import Agreement
from sealift.release.audit import Entry
from sealift.release.receipt import Receipt

if TYPE_CHECKING:
    from sealift.train.manifest import RunManifest

Plan = Literal["travel", "local"]
REHEARSAL_BAR_S: Final = 75.0
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
    def scrubbed_bytes(self) -> int:
        """Bytes overwritten and read back, by the receipts."""
        return sum(receipt.scrub.scrubbed_bytes for receipt in self.receipts)


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
    world_s: float
    roles_up_s: float
    seconds: float
    began_s: float
    folder: Path
    report: Path
    model: Path
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
    def attacks(self) -> list[AttackSeen]:
        """What was tried."""
        return self.progress.attacks

    @property
    def refused(self) -> list[AttackSeen]:
        """What was refused, for the right reason."""
        return [a for a in self.attacks if REFUSAL_OF[a.name] == a.reason]

    def to_plain(self) -> dict[str, Any]:
        """The one line of ``--json``; null where the plan has no such thing."""
        travel, verdict = self.plan == "travel", self.verdict
        return {
            "seconds": round(self.seconds, 2),
            "accuracy_joint": self.together[ACCURACY],
            "accuracy_alone": [each[ACCURACY] for each in self.alone.values()],
            "attacks_refused": len(self.refused),
            "attacks_tried": len(self.attacks),
            "log_verified": verdict.log_verified if travel else None,
            "scrub_verified": verdict.scrub_verified if travel else None,
            "receipts": len(verdict.receipts),
            "level": self.level,
            "revocation_s": _rounded(self.revocation),
            "revocation_rules": self.revocation.rules if self.revocation else None,
            "task": self.task.name,
            "report": str(self.report),
            "roles_up_s": round(self.roles_up_s, 2),
            "weights": self.weights,
        }


def _rounded(revocation: Revocation | None) -> float | None:
    return None if revocation is None else round(revocation.last_byte_s, 3)
