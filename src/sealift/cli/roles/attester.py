"""Command-line arguments about the evidence of this host."""

from __future__ import annotations

import argparse
from typing import Final

from sealift.attest.tpm.attester import EVENT_LOG, IMA_LIST
from sealift.cli.arguments import Parser
from sealift.train.job.hostattester import NONE, TPM, EvidencePlaces

HOST: Final = (
    "tpm", "tpm_state", "tpm_issuers", "event_log", "ima_list", "agent",
)  # fmt: skip


def add_tpm_arguments(parser: Parser) -> None:
    """Add where the evidence of a TPM comes from."""
    group = parser.add_argument_group("evidence of this host")
    group.add_argument(
        "--tpm", default=TPM, metavar="PLACE", help="device, or unix:PATH for swtpm"
    )
    group.add_path(
        "--tpm-state",
        metavar="DIR",
        help="attestation key and enrolments; default: tpm/ beside the job",
    )
    group.add_path(
        "--tpm-issuers",
        metavar="PEM",
        help="certificates between that of the TPM and that of its maker",
    )
    group.add_argument(
        "--event-log",
        default=str(EVENT_LOG),
        metavar="FILE",
        help=f"the firmware's event log; {NONE} if there is none",
    )
    group.add_argument(
        "--ima-list",
        default=str(IMA_LIST),
        metavar="FILE",
        help=f"the kernel's IMA list; {NONE} if there is none",
    )


def add_attester_arguments(parser: Parser) -> None:
    """Add where the evidence of this host comes from."""
    add_tpm_arguments(parser)
    parser.add_argument(
        "--agent",
        metavar="unix:PATH",
        help="an agent that attests this host, instead of a TPM",
    )


def evidence_places(args: argparse.Namespace) -> EvidencePlaces:
    """As the arguments say."""
    return EvidencePlaces.read(vars(args))
