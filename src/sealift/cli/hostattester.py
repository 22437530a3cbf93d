"""Which attester this host uses: the best level of the agreement that it can prove.

Levels are tried in the agreement's order of preference. Where none can be proven the
refusal says, level by level, what evidence this machine lacks; no level is ever taken
that was not asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from sealift import __version__
from sealift.attest.attester import Attester
from sealift.attest.attesters.development import DevelopmentAttester
from sealift.attest.attesters.tpm import TpmAttester, TpmSources
from sealift.attest.attesters.tpm.attester import EVENT_LOG, IMA_LIST
from sealift.attest.level import Level
from sealift.attest.runtimelog import CODE_BUNDLE, RuntimeEvent, measured_bundle
from sealift.cli.roles import RoleSetup
from sealift.crypto.certificate import certificates_from_pem
from sealift.errors import PolicyError, UnavailableError
from sealift.ids import Digest, Role
from sealift.release.files import read_whole

MAX_ISSUERS_BYTES: Final = 1 << 18
NONE: Final = "none"


def add_attester_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the evidence of this host comes from."""
    group = parser.add_argument_group("evidence of this host")
    group.add_argument(
        "--tpm", default="/dev/tpmrm0", metavar="PLACE", help="unix:PATH for swtpm"
    )
    group.add_argument(
        "--tpm-state",
        type=Path,
        metavar="DIR",
        help="attestation key and enrolments, not in tpm/ beside the job",
    )
    group.add_argument(
        "--tpm-issuers", type=Path, metavar="PEM", help="between the TPM and its maker"
    )
    group.add_argument(
        "--event-log",
        default=str(EVENT_LOG),
        metavar="FILE",
        help=f"the firmware's log; {NONE} if there is none",
    )
    group.add_argument(
        "--ima-list",
        default=str(IMA_LIST),
        metavar="FILE",
        help=f"the kernel's measurements; {NONE} if there are none",
    )


def open_attester(args: argparse.Namespace, setup: RoleSetup) -> Attester:
    """The attester for the first accepted level that this host can prove.

    Raises:
        UnavailableError: ``no-evidence``: what it lacks for each accepted level.
        PolicyError: ``attester-unknown``: the development attester is not agreed on.
    """
    agreement = setup.agreement.agreement
    wanted = (agreement.rehearse,) if agreement.rehearse else setup.agreement.accept
    lacking: list[str] = []
    for level in wanted:
        try:
            return _MAKERS[level](args, setup)
        except UnavailableError as error:
            lacking.append(f"{level}: {error.what}")
    raise UnavailableError(
        "this host can prove no accepted level",
        why="; ".join(lacking),
        fix="Run on a host that can, or agree on another level",
        code="no-evidence",
    )


def _development(args: argparse.Namespace, setup: RoleSetup) -> Attester:
    agreement = setup.agreement.agreement
    if setup.identity.public_key not in agreement.references.development_attesters:
        raise PolicyError(
            "the agreement does not accept this host's attester key",
            fix="Put it into references.development_attesters, or use the named host",
            code="attester-unknown",
        )
    return DevelopmentAttester(
        setup.identity,
        role=Role.ACCELERATOR,
        code_bundle=agreement.code.digest,
        software=f"sealift {__version__}",
    )


def _attested_host(args: argparse.Namespace, setup: RoleSetup) -> Attester:
    references = setup.agreement.agreement.references.tpm
    attester = TpmAttester(
        TpmSources(
            state=args.tpm_state or args.job.resolve().parent / "tpm",
            tpm=args.tpm,
            bank=references.bank if references else "sha256",
            register=references.register if references else 15,
            event_log=_path(args.event_log),
            ima_list=_path(args.ima_list),
            issuers=_issuers(args.tpm_issuers),
        )
    )
    measure_bundle_once(attester, setup.agreement.agreement.code.digest)
    return attester


def measure_bundle_once(attester: TpmAttester, bundle: Digest) -> None:
    """Measure the code that will run, before any key is asked for.

    Raises:
        UnavailableError: ``other-bundle``: this boot measured other code before.
    """
    found = measured_bundle(attester.events)
    if found is None:
        attester.measure(RuntimeEvent(CODE_BUNDLE, bundle.raw))
    elif found != bundle:
        attester.close()
        raise UnavailableError(
            "this host ran other code since it was started",
            why=f"it measured {found.short}, the agreement names {bundle.short}",
            fix="Restart the machine: what ran before cannot be taken back",
            code="other-bundle",
        )


def _lacks(what: str) -> Callable[[argparse.Namespace, RoleSetup], NoReturn]:
    def refuse(args: argparse.Namespace, setup: RoleSetup) -> NoReturn:
        raise UnavailableError(what, code="no-evidence")

    return refuse


_MAKERS: Final[dict[Level, Callable[[argparse.Namespace, RoleSetup], Attester]]] = {
    Level.DEVELOPMENT: _development,
    Level.ATTESTED_HOST: _attested_host,
    Level.TEE: _lacks("no TDX or SEV-SNP attester is wired in yet"),
    Level.GPU_TEE: _lacks("no TDX or SEV-SNP attester is wired in yet"),
    Level.UNTRUSTED_GPU: _lacks("outsourcing is not part of this version"),
}


def _path(text: str) -> Path | None:
    return None if text == NONE else Path(text)


def _issuers(path: Path | None) -> tuple[bytes, ...]:
    if path is None:
        return ()
    return tuple(
        each.der for each in certificates_from_pem(read_whole(path, MAX_ISSUERS_BYTES))
    )
