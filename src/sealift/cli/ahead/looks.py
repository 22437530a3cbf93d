"""What both sides of a job look at before it: code, evidence of this machine, torch, the port.

Whether the relay can be reached, and whether its clock is like this machine's.
"""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sealift.attest.level import Level
from sealift.channel.transport.tcp import TcpListener
from sealift.cli.ahead.dryrun import Unknown
from sealift.cli.doctor import lacking, look, probes
from sealift.errors import PeerError, UnavailableError
from sealift.events import wall_clock
from sealift.release.agreement import Agreement
from sealift.release.agreement.code import load_bundle
from sealift.release.agreement.phrases import count, say_time
from sealift.session.relay.client import RelayClient
from sealift.session.relay.proxy import RelayTransport, dial_relay, proxy_for
from sealift.train.job.hostattester import EvidencePlaces, open_attester
from sealift.train.job.rolesetup import RoleSetup
from sealift.train.job.settings import JobTable

_LABELS: Final = ("the sandbox", "TPM and TEE", "confidential computing")


DIAL_S: Final = 5.0
MAX_APART_S: Final = 300.0  # as Kerberos allows (RFC 4120, 8.2)


@dataclass(slots=True)
class Network:
    """The way to the relay, and what was heard there.

    Attributes:
        address: Of the relay.
        told_s: What time somebody said it was, in seconds since 1970.
        teller: Who said it.
    """

    address: tuple[str, int]
    told_s: float | None = None
    teller: str = ""

    def reach(self) -> str:
        """Dial once; what answers.

        Raises:
            SealiftError: as ``dial_relay`` and ``RelayClient``.
        """
        host, port = self.address
        place = f"{host}:{port}"
        if not port:
            return Unknown("the job names no port; add --orchestrator HOST:PORT")
        try:
            transport = dial_relay(self.address, timeout_s=DIAL_S)
        except PeerError as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                return Unknown(
                    f"the machine at {place} answers, but nothing listens there yet"
                )
            if error.code == "peer-unreachable" and proxy_for(host, os.environ):
                return Unknown(f"{error.what}: {error.why}, or nothing listens yet")
            raise
        through = (
            f", through the proxy {transport.proxy.place}" if transport.proxy else ""
        )
        self._hear(transport)
        return f"a relay answers at {place}{through}"

    def _hear(self, transport: RelayTransport) -> None:
        if transport.date_s is not None:
            self.told_s, self.teller = transport.date_s, "the proxy"
        name = f"check-{secrets.token_hex(8)}"
        try:
            with RelayClient(transport, name, DIAL_S) as client:
                if client.clock_s is not None:
                    self.told_s, self.teller = client.clock_s, "the relay's machine"
        except PeerError as error:
            if error.code != "relay-full":  # it answered, and that was the question
                raise

    def compare_clocks(self, now_s: float) -> str:
        """This machine's with the one that was heard.

        Raises:
            UnavailableError: ``clock-off``.
        """
        if self.told_s is None:
            return Unknown(
                f"not compared; on this machine it is {say_time(int(now_s))}"
            )
        apart_s = now_s - self.told_s
        if abs(apart_s) <= MAX_APART_S:
            return f"{abs(apart_s):.0f} s apart from {self.teller}"
        way = "ahead of" if apart_s > 0 else "behind"
        raise UnavailableError(
            f"this machine's clock is {abs(apart_s) / 60:.0f} minutes {way} that of {self.teller}",
            code="clock-off",
        )


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
