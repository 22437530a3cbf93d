"""What both sides of a job look at before it: code, evidence of this machine, torch, the port."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sealift.attest.level import Level
from sealift.channel.transport.tcp import TcpListener
from sealift.cli.ahead.dryrun import Unknown
from sealift.cli.doctor import lacking, look, probes
from sealift.errors import UnavailableError
from sealift.events import wall_clock
from sealift.release.agreement import Agreement
from sealift.release.agreement.code import load_bundle
from sealift.release.agreement.explain import count, say_time
from sealift.train.job.hostattester import EvidencePlaces, open_attester
from sealift.train.job.rolesetup import RoleSetup
from sealift.train.job.settings import JobTable

_LABELS: Final = ("the sandbox", "TPM and TEE", "confidential computing")


def look_at_time(agreement: Agreement) -> str:
    """Whether it holds now.

    Raises:
        PolicyError: ``agreement-not-yet``, ``agreement-expired``.
    """
    agreement.require_time(wall_clock())
    until = agreement.not_after
    return f"signed, and valid {f'until {say_time(until)}' if until else 'now'}"


def look_at_code(job: JobTable, agreement: Agreement) -> str:
    """Whether the bundle is the agreed one.

    Raises:
        SealiftError: as ``load_bundle``.
    """
    files = load_bundle(Path(job.bundle), agreement.code)
    return f"{count(len(files), 'file')}, as agreed: {agreement.code.digest}"


def look_at_evidence(setup: RoleSetup, places: EvidencePlaces) -> str:
    """Which accepted level this machine can prove; nothing is measured for it.

    Raises:
        UnavailableError: ``no-evidence``.
        PolicyError: ``attester-unknown``.
    """
    agreement = setup.agreement.agreement
    wanted = (agreement.rehearse,) if agreement.rehearse else agreement.accept
    if wanted == (Level.DEVELOPMENT,):
        open_attester(setup, places)  # a key, which the agreement names or not
        return "level development, with a key that the agreement names"
    if places.agent:
        return _look_at_agent(places.agent)
    found = look([e for e in probes(Path()) if e.label in _LABELS], sys.stderr)
    lacks = {level: lacking(level, found) for level in wanted}
    for level, missing in lacks.items():
        if not missing:
            return f"level {level}: this machine has what its evidence needs"
    raise UnavailableError(
        "this host cannot attest an accepted level",
        why="; ".join(f"{each} needs {', '.join(lacks[each])}" for each in lacks),
        code="no-evidence",
    )


def _look_at_agent(agent: str) -> str:
    if not os.path.exists(agent.removeprefix("unix:")):
        raise UnavailableError(f"no agent has the socket {agent}", code="no-evidence")
    return Unknown(f"the agent at {agent} attests this host; it was not asked now")


def look_at_torch() -> str:
    """Whether it is installed.

    Raises:
        UnavailableError: ``extra-missing``.
    """
    if find_spec("torch") is None:
        raise UnavailableError(
            "training needs torch, which is not installed",
            fix="In Sealift's folder, run: pip install '.[train]'",
            code="extra-missing",
        )
    return "installed"


def look_at_device(job: JobTable) -> str:
    """Whether recipes will find the device that the job names, in their sandbox.

    Raises:
        UnavailableError: ``no-device``.
        JobError: ``recipe-killed``.
    """
    wanted = job.run.device
    if wanted in ("cpu", "auto"):
        return "the CPU" if wanted == "cpu" else "the first GPU that works, or the CPU"
    if find_spec("torch") is None:
        return Unknown("not checked without torch")
    from sealift.train.worker.executor import RecipeExecutor

    with RecipeExecutor({"recipe.py": b""}, "recipe.py") as executor:
        executor.compute_on(wanted)
        return executor.device()


def look_at_port(address: tuple[str, int]) -> str:
    """Whether it can be listened at, for an instant.

    Raises:
        UnavailableError: ``port-in-use``, ``cannot-listen``.
    """
    TcpListener(*address).close()
    return "free"
