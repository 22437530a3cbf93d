"""Collects SEV-SNP evidence: a report by configfs-tsm, with the host's certificates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sealift.attest.configfs import (
    INBLOB_BYTES,
    TsmReader,
    TsmReport,
    interfered,
    require_provider,
)
from sealift.attest.evidence import Evidence, require_bound
from sealift.attest.snp.endorsement import parse_table
from sealift.attest.snp.evidence import MEDIA_TYPE, SnpBody, parse_report

PROVIDER: Final = "sev_guest"


@dataclass(frozen=True, slots=True)
class SnpAttester:
    """Attests the SEV-SNP guest that this process runs in.

    Attributes:
        reader: Makes reports.
        vmpl: The privilege level that asks; the guest cannot ask for a lower number
            than its own.
    """

    reader: TsmReader = field(default_factory=TsmReader)
    vmpl: int = 0

    @property
    def media_type(self) -> str:
        """Of the evidence that it makes."""
        return MEDIA_TYPE

    def collect(self, bound: bytes) -> Evidence:
        """Evidence over ``bound``; certificates that the host kept come by collateral.

        Raises:
            UsageError: if ``bound`` has not 2 to 64 bytes.
            UnavailableError: if the platform gives no report.
        """
        require_bound(bound)
        inblob = bound.ljust(INBLOB_BYTES, b"\0")
        report = self.reader.report(inblob, privlevel=self.vmpl)
        require_provider(report, PROVIDER)
        if parse_report(report.outblob).report_data != inblob:
            raise interfered("its report is not over what was asked for")
        return SnpBody(
            report=report.outblob, certificates=_certificates(report)
        ).to_evidence()


def _certificates(report: TsmReport) -> tuple[bytes, ...]:
    return parse_table(report.auxblob) if report.auxblob else ()
