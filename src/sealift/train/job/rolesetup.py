"""What a process of a job starts from: job, agreement, identity, all checked at home.

Nothing here knows where it was said: a command line says it, and for ranks that torchrun
or Ray starts the environment does (``SEALIFT_KEY``, ``SEALIFT_COLLATERAL``: an option's
name in capitals).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.attest.evidence import Attester
from sealift.crypto.identity import Identity, load_identity
from sealift.crypto.sign import PublicKey
from sealift.errors import UsageError
from sealift.events import Sink
from sealift.ids import Role
from sealift.release.agreement.signed import VerifiedAgreement, load_verified
from sealift.release.agreement.training import RunTerms
from sealift.release.equip import equip_from_files
from sealift.release.files import read_given_passphrase
from sealift.session.endpoint import Endpoint
from sealift.train.job.settings import JobTable, check_job, parse_address, read_job
from sealift.train.plans import PLANS, Plan, PlanName, PlanRole, plans_with
from sealift.travel.settings import run_terms

PREFIX: Final = "SEALIFT_"


def boot_clock() -> float:
    """Seconds that also count while the machine sleeps (rule H5)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class RoleSetup:
    """A role before it dials: everything that can be wrong at home was checked.

    Attributes:
        job: From ``job.toml``.
        folder: Where that file lies.
        agreement: Signed by everybody, and equipped.
        identity: Unlocked.
        sink: Where events go.
        address: Of the orchestrator.
    """

    job: JobTable
    folder: Path
    agreement: VerifiedAgreement
    identity: Identity
    sink: Sink
    address: tuple[str, int]

    @property
    def run(self) -> RunTerms:
        """What the job file sets of what the parties agreed on."""
        return run_terms(self.job.name, self.job.plan, self.job.settings)

    def endpoint(self, role: Role) -> Endpoint:
        """An end of sessions that the identity stands for."""
        return Endpoint(
            role=role,
            name=self.identity.name,
            agreement=self.agreement.digest,
            identity=self.identity,
        )

    def attested(self, name: str, attester: Attester) -> Endpoint:
        """An accelerator's end of sessions, which evidence stands for."""
        return Endpoint(
            role=Role.ACCELERATOR,
            name=name,
            agreement=self.agreement.digest,
            attester=attester,
        )


def read_role(
    job_file: Path, role: PlanRole, *, clock: Callable[[], float]
) -> tuple[JobTable, VerifiedAgreement]:
    """The job and its agreement, which must allow it and have this role.

    Args:
        job_file: Of the job.
        role: Which process this is.
        clock: Seconds since 1970.

    Raises:
        SealiftError: the first thing that is wrong, before any key is used.
    """
    job = read_job(job_file)
    agreement = load_verified(Path(job.agreement))
    agreement.agreement.require_time(clock())
    check_job(job, agreement)
    require_role(job.plan, role)
    return job, agreement


def require_role(plan: PlanName, role: PlanRole) -> None:
    """Demand that a plan has such a process.

    Raises:
        UsageError: ``other-plan``.
    """
    if role not in PLANS[plan].roles:
        raise UsageError(
            f"the job's plan is {plan}",
            why=f"this command runs the plan {' or '.join(plans_with(role))}",
            fix=run_instead(PLANS[plan]),
            code="other-plan",
        )


def run_instead(plan: Plan) -> str:
    """What runs a job of this plan."""
    ours = plan.command != "torchrun"
    command = f"sealift {plan.command}" if ours else "torchrun SCRIPT"
    return f"Run `{command}` with the job's folder instead"


def set_up_rank(
    environment: MutableMapping[str, str],
    role: PlanRole,
    *,
    clock: Callable[[], float],
    sink: Sink,
    job_file: Path | None = None,
) -> RoleSetup:
    """A rank's, for whom nobody wrote a command line.

    Args:
        environment: Of this process (``given``); a passphrase in it is removed.
        role: ``accelerator``, or ``rank`` of a script.
        clock: Seconds since 1970.
        sink: Where events go.
        job_file: Of the job, if not what ``SEALIFT_JOB`` says.

    Raises:
        UsageError: ``variable-missing``, ``no-terminal``.
        SealiftError: the first thing that is wrong, before anything is started.
    """
    said = given(environment)
    key, job_file = _named(said, "key"), job_file or _named(said, "job")
    job, agreement = read_role(job_file, role, clock=clock)
    file = said.get("passphrase_file")
    passphrase = read_given_passphrase(Path(file) if file else None, environment)
    if passphrase is None:
        raise UsageError(
            "a rank cannot ask for the passphrase of its key",
            fix=f"Set {PREFIX}PASSPHRASE_FILE to a file with the passphrase",
            code="no-terminal",
        )
    identity = load_identity(key, passphrase)
    agreement = equip_from_files(
        agreement,
        collateral=Path(said["collateral"]) if "collateral" in said else None,
        references=[Path(p) for p in said.get("references", "").split(os.pathsep) if p],
        enroller=own_enroller(agreement, identity),
        clock=clock,
    )
    folder, there = job_file.resolve().parent, said.get("orchestrator")
    address = parse_address(there) if there else job.address
    return RoleSetup(job, folder, agreement, identity, sink, address)


def _named(said: Mapping[str, str], name: str) -> Path:
    if name not in said:
        what = f"{PREFIX}{name.upper()} does not name a file"
        raise UsageError(what, code="variable-missing")
    return Path(said[name])


def own_enroller(agreement: VerifiedAgreement, identity: Identity) -> PublicKey | None:
    """Whose word about a TPM a process of this identity believes; None is any agreed.

    A data owner's processes believe what its own broker found out, and nobody else.
    """
    holders = agreement.agreement.holders
    return identity.public_key if identity.name in holders else None


def given(environment: Mapping[str, str]) -> dict[str, str]:
    """What a command line would say, by its options' names: ``SEALIFT_TPM_STATE``."""
    return {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and value
    }
