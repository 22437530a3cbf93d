"""Reference values for a TDX guest."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TdxReferences:
    """What a TD quote must show; a register without accepted value is refused.

    Attributes:
        mrtd: Accepted build-time measurements (48 bytes each).
        rtmr: Accepted values of RTMR 0 to 2, by number (decimal).
        mrconfigid: Accepted values (48 bytes); 48 zeros if none was configured.
        mrservicetd: Accepted digests of bound service TDs (48 bytes); 48 zeros if none.
        sept_ve_disable: Whether the host must be unable to make the guest fault on
            memory that it accepted (TD attribute SEPT_VE_DISABLE).
        tcb_statuses: Accepted TCB statuses of Intel's list.
        min_tcb_evaluation: Lowest tcbEvaluationDataNumber of the collateral.
        platforms: Accepted PPIDs (16 bytes), or empty for any.
    """

    mrtd: tuple[bytes, ...]
    rtmr: dict[str, tuple[bytes, ...]]
    mrconfigid: tuple[bytes, ...]
    mrservicetd: tuple[bytes, ...] = (bytes(48),)
    sept_ve_disable: bool = True
    tcb_statuses: tuple[str, ...] = ("UpToDate",)
    min_tcb_evaluation: int = 0
    platforms: tuple[bytes, ...] = ()
