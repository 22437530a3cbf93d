"""What a TD report and its platform are compared on: rules of spec/evidence-tdx.md.

Apart from the evidence that carries them, because quotes come in Azure's evidence too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sealift.attest.check import (
    Check,
    check,
    check_among,
    check_bound,
    check_collateral_age,
)
from sealift.attest.collateral import Collateral
from sealift.attest.reference import ReferenceValues
from sealift.attest.runtimelog import replay
from sealift.attest.tdx.evidence import REGISTER_HASH, RUNTIME_REGISTER, TdxBody
from sealift.attest.tdx.intelquote import QuoteVerdict
from sealift.attest.tdx.quote import TdReport
from sealift.attest.tdx.references import TdxReferences
from sealift.attest.tpm.eventlog import parse, rtmrs
from sealift.crypto.certificate import say_time

# Intel TDX module ABI, ATTRIBUTES.
DEBUG: Final = 0xFF  # bit 0, and what else lets somebody see or disturb the guest
SEPT_VE_DISABLE: Final = 1 << 28
MIGRATABLE: Final = 1 << 29
_KNOWN: Final = DEBUG | sum(1 << bit for bit in (16, 27, 28, 29, 30, 31, 62, 63))
BOOT_REGISTERS: Final = (0, 1, 2)
"""RTMRs that firmware and boot loader extend, and references pin."""


def check_report(
    report: TdReport, bound: bytes | None, references: TdxReferences
) -> tuple[Check, ...]:
    """The guest: bound value, attributes, measurements."""
    return (
        check_bound(report.report_data, bound, "TDX report data"),
        *_check_attributes(report, references),
        check_among(
            report.mrservicetd or bytes(48),
            references.mrservicetd,
            "TDX service TDs (MRSERVICETD)",
            code="tdx-service-td",
        ),
        check_among(report.mrtd, references.mrtd, "MRTD", code="tdx-mrtd"),
        check_among(
            report.mrconfigid,
            references.mrconfigid,
            "MRCONFIGID",
            code="tdx-mrconfigid",
        ),
        *(
            check_among(
                report.rtmr[number],
                references.rtmr.get(str(number), ()),
                f"RTMR {number}",
                code="tdx-rtmr",
            )
            for number in BOOT_REGISTERS
        ),
    )


def check_logs(report: TdReport, body: TdxBody) -> tuple[Check, ...]:
    """The logs give the registers: firmware's 0 to 2, our events all of RTMR 3.

    Were firmware's log believed about RTMR 3, whoever sends it could hide the first
    events there (another code bundle, a late binding of GPUs) as firmware's.

    Raises:
        MalformedError: if firmware's log does not parse.
    """
    replayed = {RUNTIME_REGISTER: replay(body.events, REGISTER_HASH, bytes(48))}
    if body.ccel is not None:
        booted = rtmrs(parse(body.ccel))
        replayed |= {each: booted.get(each, bytes(48)) for each in BOOT_REGISTERS}
    return tuple(
        _check_replay(number, replayed[number], report.rtmr[number])
        for number in sorted(replayed)
    )


def check_platform(
    verdict: QuoteVerdict,
    references: ReferenceValues,
    collateral: Collateral,
    *,
    at_s: int,
) -> Iterator[Check]:
    """The hardware under the guest, and how old what is known of it is."""
    assert references.tdx is not None, "the caller needs them before"
    yield _check_status(verdict, references.tdx)
    yield check(
        verdict.evaluation >= references.tdx.min_tcb_evaluation,
        "TCB evaluation data number",
        expected=f"at least {references.tdx.min_tcb_evaluation}",
        found=str(verdict.evaluation),
        code="tcb-evaluation-old",
        refusal="stale",
    )
    if references.tdx.platforms:
        yield check_among(
            verdict.platform.ppid,
            references.tdx.platforms,
            "platform (PPID)",
            code="tdx-platform",
        )
    yield _check_lists(verdict, at_s)
    yield check_collateral_age(
        collateral, max_age_s=references.collateral_max_age_s, at_s=at_s
    )


def _check_attributes(report: TdReport, references: TdxReferences) -> Iterator[Check]:
    found = f"attributes {report.attributes:#018x}"
    yield check(
        not report.attributes & DEBUG,
        "TDX debug",
        expected="off",
        found=found,
        code="tdx-debug",
    )
    yield check(
        not report.attributes & MIGRATABLE,
        "TDX migration",
        expected="the guest cannot be migrated",
        found=found,
        code="tdx-migratable",
    )
    yield check(
        not references.sept_ve_disable or bool(report.attributes & SEPT_VE_DISABLE),
        "TDX SEPT_VE_DISABLE",
        expected="set" if references.sept_ve_disable else "any",
        found=found,
        code="tdx-sept-ve",
    )
    yield check(
        not report.attributes & ~_KNOWN,
        "TDX attributes",
        expected="none that is unknown here",
        found=found,
        code="tdx-attributes",
    )


def _check_replay(number: int, replayed: bytes, found: bytes) -> Check:
    return check(
        replayed == found,
        f"log of RTMR {number}",
        expected=f"replays to {found.hex()}",
        found=replayed.hex(),
        code="tdx-log",
        refusal="evidence",
    )


def _check_status(verdict: QuoteVerdict, references: TdxReferences) -> Check:
    advisories = f" ({', '.join(verdict.advisories)})" if verdict.advisories else ""
    return check(
        verdict.status in references.tcb_statuses,
        "TCB status of the platform",
        expected=" or ".join(references.tcb_statuses) or "no status is allowed",
        found=verdict.status + advisories,
        code="tcb-status",
    )


def _check_lists(verdict: QuoteVerdict, at_s: int) -> Check:
    return check(
        verdict.issued_s <= at_s <= verdict.due_s,
        "time of Intel's lists",
        expected=say_time(at_s),
        found=f"{say_time(verdict.issued_s)} to {say_time(verdict.due_s)}",
        code="tcb-lists-expired",
        refusal="stale",
    )
