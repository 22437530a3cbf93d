"""After the run: logs, receipts, scrub reports, attacks and model, each by its owner.

Nothing here believes the processes that ran: the files that the parties kept are
verified with the agreement alone, as a court would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sealift.crypto.identity import Identity, load_identity
from sealift.errors import IntegrityError, SealiftError
from sealift.lab.demo.outcome import REFUSAL_OF, CheckedLog, Verdict
from sealift.lab.demo.progress import Progress
from sealift.lab.demo.travelrun import TravelRun
from sealift.lab.worlds.folder import MODEL_OWNER, OWNERS, Home, World
from sealift.release.equip import equip
from sealift.release.files import write_whole
from sealift.release.heads import find_head
from sealift.release.logcheck import read_entries, verify_log
from sealift.release.receipt import load_receipt, verify_receipt
from sealift.release.signed import VerifiedAgreement, load_verified

MAX_PASSPHRASE_BYTES: Final = 1024


def check_run(
    world: World, run: TravelRun, *, attacks: bool, now: Callable[[], float]
) -> Verdict:
    """Check everything that the parties keep of a run; failures are collected.

    Args:
        world: Made by ``make_world``.
        run: What was told of it.
        attacks: Whether one holder was a hostile one.
        now: Seconds since 1970, to judge certificates at.
    """
    verdict = Verdict()
    verified = equip(load_verified(world.agreement), clock=now)
    verdict.agreement = verified.agreement
    if attacks:
        _try(verdict, "attacks", lambda: _check_attacks(run.progress))
    _try(verdict, "logs", lambda: _check_logs(world, verified, verdict))
    _try(verdict, "receipts", lambda: _check_receipts(world, verified, verdict, run))
    _try(verdict, "model", lambda: _check_model(world, verified, verdict, run))
    return verdict


def unlock(home: Home) -> Identity:
    """A party's identity, with the passphrase that only a demo leaves beside it."""
    return load_identity(home.key, home.passphrase.read_text("utf-8").strip())


def _try(verdict: Verdict, name: str, check: Callable[[], None]) -> None:
    try:
        check()
    except SealiftError as error:
        verdict.failures.append(f"{name}: {error}")


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
    for owner in OWNERS:
        verdict.logs.append(_check_log(world, verified, owner))
    verdict.log_verified = True


def _check_log(world: World, verified: VerifiedAgreement, owner: str) -> CheckedLog:
    """One owner's log continues the heads that the other owners kept."""
    path, key = world.home(owner).log, verified.party(owner).sign
    others = tuple(name for name in OWNERS if name != owner)
    heads = [find_head(world.home(other).heads, key) for other in others]
    report = [verify_log(path, head) for head in heads][-1]
    if report.owner != key:
        raise IntegrityError(f"{owner}'s log has another key", code="other-log")
    return CheckedLog(
        owner=owner,
        size=report.size,
        releases=report.releases,
        refusals=report.refusals,
        root=report.root.to_text(),
        kept_by=others,
        entries=tuple(read_entries(path)),
    )


def _check_receipts(
    world: World, verified: VerifiedAgreement, verdict: Verdict, run: TravelRun
) -> None:
    for owner in OWNERS:
        for path in sorted(world.home(owner).receipts.iterdir()):
            verdict.receipts.append(verify_receipt(load_receipt(path), verified))
    kept = {receipt.visit.to_text() for receipt in verdict.receipts}
    if kept != {visit.visit for visit in run.progress.verified}:
        raise IntegrityError(
            "receipts and visits differ",
            why=f"{len(kept)} receipts, {len(run.progress.verified)} visits",
            code="receipts-missing",
        )
    verdict.receipts_verified = True
    # verify_receipt refuses a receipt whose scrub left anything.
    verdict.scrub_verified = all(receipt.scrub.verified for receipt in verdict.receipts)


def _check_model(
    world: World, verified: VerifiedAgreement, verdict: Verdict, run: TravelRun
) -> None:
    from sealift.train.handover import open_output  # torch
    from sealift.train.output import MODEL_NAME

    opened = open_output(world.run, unlock(world.home(MODEL_OWNER)), verified)
    if opened.weights.to_text() != run.result["weights"]:
        raise IntegrityError(
            "the orchestrator told other weights", code="weights-differ"
        )
    write_whole(world.model, opened.content)
    verdict.parameters, verdict.manifest = opened.parameters, opened.manifest
    verdict.model_bytes = (world.run / MODEL_NAME).stat().st_size
    verdict.model_verified = True
