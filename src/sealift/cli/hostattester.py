"""Which attester this host uses: the best level of the agreement that it can prove.

Levels are tried in the agreement's order of preference. Where none can be proven the
refusal says, level by level, what evidence this machine lacks; no level is ever taken
that was not asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift import __version__
from sealift.attest.agent import AgentAttester
from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import Attester
from sealift.attest.level import Level
from sealift.attest.tpm.attester import TpmAttester
from sealift.cli.evidencesources import (
    LoggingAttester,
    Platform,
    add_tpm_arguments,
    bind_devices,
    measure_bundle_once,
    open_tee,
    open_tpm,
)
from sealift.cli.roles import RoleSetup
from sealift.errors import PolicyError, UnavailableError
from sealift.ids import Digest, Role

HOST: Final = (
    "tpm", "tpm_state", "tpm_issuers", "event_log", "ima_list", "agent",
)  # fmt: skip


def add_attester_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the evidence of this host comes from."""
    add_tpm_arguments(parser)
    parser.add_argument(
        "--agent",
        metavar="unix:PATH",
        help="an agent that attests for this host, in place of a TPM of its own",
    )


@dataclass(frozen=True, slots=True)
class _Host:
    """What a maker of attesters needs."""

    args: argparse.Namespace
    setup: RoleSetup
    platform: Platform
    role: Role
    code: Digest


def open_attester(
    args: argparse.Namespace,
    setup: RoleSetup,
    platform: Platform | None = None,
    *,
    role: Role = Role.ACCELERATOR,
    code: Digest | None = None,
) -> Attester:
    """The attester for the first accepted level that this host can prove.

    Args:
        args: With ``add_attester_arguments``.
        setup: Of the role.
        platform: Of this machine.
        role: Of this process.
        code: What it runs; the agreement's bundle if nothing is said.

    Raises:
        UnavailableError: ``no-evidence``: what it lacks for each accepted level.
        PolicyError: ``attester-unknown``: the development attester is not agreed on.
    """
    agreement = setup.agreement.agreement
    wanted = (agreement.rehearse,) if agreement.rehearse else setup.agreement.accept
    code = code or agreement.code.digest
    host = _Host(args, setup, platform or Platform(), role, code)
    lacking: list[str] = []
    for level in wanted:
        try:
            return _MAKERS[level](host)
        except UnavailableError as error:
            lacking.append(f"{level}: {error.what}")
    raise UnavailableError(
        "this host can prove no accepted level",
        why="; ".join(lacking),
        fix="Run on a host that can, or agree on another level",
        code="no-evidence",
    )


def _development(host: _Host) -> Attester:
    setup = host.setup
    agreement = setup.agreement.agreement
    if setup.identity.public_key not in agreement.references.development_attesters:
        raise PolicyError(
            "the agreement does not accept this host's attester key",
            code="attester-unknown",
        )
    return DevelopmentAttester(
        setup.identity,
        role=host.role,
        code_bundle=host.code,
        software=f"sealift {__version__}",
    )


def _attested_host(host: _Host) -> Attester:
    agreement = host.setup.agreement.agreement
    references = agreement.references.tpm
    attester: AgentAttester | TpmAttester
    if host.args.agent is not None:
        attester = AgentAttester(host.args.agent)
    else:
        attester = open_tpm(
            host.args,
            _state(host),
            bank=references.bank if references else "sha256",
            register=references.register if references else 15,
        )
    try:
        measure_bundle_once(attester, host.code)
    except BaseException:
        attester.close()
        raise
    return attester


def _state(host: _Host) -> Path:
    """Where a TPM's keys and log are kept, unless the arguments say."""
    job: Path = host.args.job
    return job.resolve().parent / "tpm"


def _tee(host: _Host) -> Attester:
    """A guest without a log of its own names its code otherwise (SEV-SNP: HOST_DATA)."""
    attester = open_tee(host.args, host.platform, _state(host))
    if isinstance(attester, LoggingAttester):
        measure_bundle_once(attester, host.code)
    return attester


def _gpu_tee(host: _Host) -> Attester:
    """The GPUs are bound before the code is measured (rule E20)."""
    lead = open_tee(host.args, host.platform, _state(host))
    join = bind_devices(lead, host.platform)
    if isinstance(lead, LoggingAttester):
        measure_bundle_once(lead, host.code)
    return join()


def _outsourced(host: _Host) -> Attester:
    raise UnavailableError(
        "outsourcing is not part of this version", code="no-evidence"
    )


_MAKERS: Final[dict[Level, Callable[[_Host], Attester]]] = {
    Level.DEVELOPMENT: _development,
    Level.ATTESTED_HOST: _attested_host,
    Level.TEE: _tee,
    Level.GPU_TEE: _gpu_tee,
    Level.UNTRUSTED_GPU: _outsourced,
}
