"""Which attester this host uses: the best level of the agreement that it can prove.

Levels are tried in the agreement's order of preference. Where none can be proven the
refusal says, level by level, what evidence this machine lacks; no level is ever taken
that was not asked for. There is one way to open each kind of attester.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self, runtime_checkable

from sealift import __version__
from sealift.attest.azure.attester import (
    AzureAttester,
    AzureSources,
    MetadataService,
)
from sealift.attest.composite import CompositeAttester
from sealift.attest.configfs import (
    CCEL_FILE,
    INBLOB_BYTES,
    SEV_GUEST,
    TDX_GUEST,
    RuntimeRegister,
    SnpAttester,
    TdxAttester,
    TsmReader,
)
from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import Attester, MeasuringAttester
from sealift.attest.level import Level
from sealift.attest.nvidia.attester import bind_gpus, gpu_attesters, open_nvml
from sealift.attest.runtimelog import (
    CODE_BUNDLE,
    GPU_BINDING,
    RuntimeEvent,
    measured_bundle,
)
from sealift.attest.tpm.agent import AgentAttester
from sealift.attest.tpm.attester import EVENT_LOG, IMA_LIST, TpmAttester, TpmSources
from sealift.crypto.certificate import certificates_from_pem
from sealift.errors import PolicyError, UnavailableError
from sealift.ids import Digest, Role
from sealift.release.files import locked, read_whole
from sealift.train.job.rolesetup import RoleSetup

MAX_ISSUERS_BYTES: Final = 1 << 18
NONE: Final = "none"
TPM: Final = "/dev/tpmrm0"
Bank = Literal["sha256", "sha384"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidencePlaces:
    """Where the evidence of this host comes from.

    Attributes:
        tpm: A device, or ``unix:PATH`` of a software TPM.
        tpm_state: Attestation key and enrolments; ``tpm/`` beside the job without it.
        tpm_issuers: Certificates between the TPM and its maker (PEM).
        event_log: The firmware's log, if there is one.
        ima_list: The kernel's measurements, if there are any.
        agent: ``unix:PATH`` of one that attests in place of a TPM of its own.
    """

    tpm: str = TPM
    tpm_state: Path | None = None
    tpm_issuers: Path | None = None
    event_log: Path | None = EVENT_LOG
    ima_list: Path | None = IMA_LIST
    agent: str | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Of options or variables, by these names; ``none`` is no such file."""

        def path(name: str, otherwise: Path | None = None) -> Path | None:
            text = given.get(name)
            if text is None:
                return otherwise
            return None if str(text) == NONE else Path(text)

        return cls(
            tpm=given.get("tpm") or TPM,
            tpm_state=path("tpm_state"),
            tpm_issuers=path("tpm_issuers"),
            event_log=path("event_log", EVENT_LOG),
            ima_list=path("ima_list", IMA_LIST),
            agent=given.get("agent"),
        )


@dataclass(frozen=True, slots=True)
class HostPlatform:
    """What attesters of this machine ask; tests put stand-ins in its place.

    Attributes:
        reader: Reports of TDX and SEV-SNP.
        register: TDX's register of the runtime log.
        ccel: TDX's firmware log.
        nvml: Opens NVML.
        azure_host: What an Azure guest asks its host.
    """

    reader: TsmReader = field(default_factory=TsmReader)
    register: RuntimeRegister = field(default_factory=RuntimeRegister)
    ccel: Path = CCEL_FILE
    nvml: Callable[[], Any] = open_nvml
    azure_host: MetadataService = field(default_factory=MetadataService)


@runtime_checkable
class LoggingAttester(MeasuringAttester, Protocol):
    """One whose runtime log can be looked at."""

    @property
    def events(self) -> tuple[RuntimeEvent, ...]:
        """What was measured since the machine was started, in order."""
        ...


def open_tpm(
    places: EvidencePlaces, state: Path, *, bank: Bank = "sha256", register: int = 15
) -> TpmAttester:
    """The attester of this host's TPM; its state lies in ``state`` unless said.

    Raises:
        UnavailableError: without a TPM that answers.
    """
    return TpmAttester(
        TpmSources(
            state=places.tpm_state or state,
            tpm=places.tpm,
            bank=bank,
            register=register,
            event_log=places.event_log,
            ima_list=places.ima_list,
            issuers=_issuers(places.tpm_issuers),
        )
    )


def open_tee(places: EvidencePlaces, platform: HostPlatform, state: Path) -> Attester:
    """The attester of the TDX, SEV-SNP or Azure guest that this process runs in.

    A first report is made at once: a guest that gets none cannot prove anything.
    Azure's paravisor keeps the hardware's interface to itself: there, the report lies in
    the virtual TPM.

    Raises:
        UnavailableError: in any other machine.
    """
    try:
        provider = platform.reader.report(bytes(INBLOB_BYTES)).provider
    except UnavailableError as no_interface:
        try:
            return open_azure(places, platform, state)
        except UnavailableError:
            raise no_interface from None
    if provider == TDX_GUEST:
        return open_tdx(platform)
    if provider == SEV_GUEST:
        return SnpAttester(platform.reader)
    raise UnavailableError(
        f"this version of Sealift cannot make evidence from reports of {provider}",
        code="tsm-provider",
    )


def open_azure(
    places: EvidencePlaces, platform: HostPlatform, state: Path
) -> AzureAttester:
    """The attester of a confidential guest of Azure; its log lies in ``state``.

    Raises:
        UnavailableError: ``azure-paravisor`` in any other machine.
    """
    return AzureAttester(
        AzureSources(
            state=places.tpm_state or state,
            tpm=places.tpm,
            event_log=places.event_log,
            host=platform.azure_host,
        )
    )


def open_tdx(platform: HostPlatform) -> TdxAttester:
    """The attester of a TDX guest."""
    return TdxAttester(platform.reader, platform.register, platform.ccel)


def bind_devices(
    lead: Attester, platform: HostPlatform
) -> Callable[[], CompositeAttester]:
    """Measure this machine's GPUs into the lead's log, unless this boot did already.

    Returns:
        What makes the attester of all together, once code was measured.

    Raises:
        UnavailableError: for a lead without a log, or GPUs that are not closed.
    """
    if not isinstance(lead, LoggingAttester):
        raise UnavailableError(
            "this machine cannot bind GPUs to its evidence",
            why="an SEV-SNP guest has no register that it can extend while it runs",
            code="gpu-unbound",
        )
    nvml = platform.nvml()
    if not any(each.kind == GPU_BINDING for each in lead.events):
        bind_gpus(nvml, lead.measure)
    return lambda: CompositeAttester(lead, gpu_attesters(nvml))


def _measure_bundle_once(attester: LoggingAttester, bundle: Digest) -> None:
    """Measure the code that will run, before any key is asked for.

    Raises:
        UnavailableError: ``other-bundle``: this boot measured other code before.
    """
    measured = measured_bundle(attester.events)
    if measured is None:
        attester.measure(RuntimeEvent(CODE_BUNDLE, bundle.raw))
    elif measured != bundle:
        raise UnavailableError(
            "this host has run other code since it was started",
            why=f"it measured {measured.short}; the agreement names {bundle.short}",
            code="other-bundle",
        )


def _issuers(path: Path | None) -> tuple[bytes, ...]:
    if path is None:
        return ()
    return tuple(
        each.der for each in certificates_from_pem(read_whole(path, MAX_ISSUERS_BYTES))
    )


@dataclass(frozen=True, slots=True)
class _Host:
    """What a maker of attesters needs."""

    setup: RoleSetup
    places: EvidencePlaces
    platform: HostPlatform
    role: Role
    code: Digest


def open_attester(
    setup: RoleSetup,
    places: EvidencePlaces,
    platform: HostPlatform | None = None,
    *,
    role: Role = Role.ACCELERATOR,
    code: Digest | None = None,
) -> Attester:
    """The attester for the first accepted level that this host can prove.

    Args:
        setup: Of the role.
        places: Where its evidence comes from.
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
    host = _Host(setup, places, platform or HostPlatform(), role, code)
    lacking: list[str] = []
    # Of several ranks of a host one makes and measures. A software key measures nothing,
    # nor does who asks an agent; and a demo holds the job's folder itself.
    measures = wanted != (Level.DEVELOPMENT,) and not places.agent
    with locked(setup.folder) if measures else nullcontext():
        for level in wanted:
            try:
                return _MAKERS[level](host)
            except UnavailableError as error:
                lacking.append(f"{level}: {error.what}")
    raise UnavailableError(
        "this host cannot make evidence of any level that the agreement accepts",
        why="; ".join(lacking),
        code="no-evidence",
    )


def _development(host: _Host) -> Attester:
    setup = host.setup
    agreement = setup.agreement.agreement
    if setup.identity.public_key not in agreement.references.development_attesters:
        raise PolicyError(
            "the agreement does not name this host's attester key",
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
    if host.places.agent is not None:
        attester = AgentAttester(host.places.agent)
    else:
        attester = open_tpm(
            host.places,
            _state(host),
            bank=references.bank if references else "sha256",
            register=references.register if references else 15,
        )
    try:
        _measure_bundle_once(attester, host.code)
    except BaseException:
        attester.close()
        raise
    return attester


def _state(host: _Host) -> Path:
    """Where a TPM's keys and log are kept, unless the places say."""
    return host.setup.folder / "tpm"


def _tee(host: _Host) -> Attester:
    """A guest without a log of its own names its code otherwise (SEV-SNP: HOST_DATA)."""
    attester = open_tee(host.places, host.platform, _state(host))
    if isinstance(attester, LoggingAttester):
        _measure_bundle_once(attester, host.code)
    return attester


def _gpu_tee(host: _Host) -> Attester:
    """The GPUs are bound before the code is measured (rule E20)."""
    lead = open_tee(host.places, host.platform, _state(host))
    join = bind_devices(lead, host.platform)
    if isinstance(lead, LoggingAttester):
        _measure_bundle_once(lead, host.code)
    return join()


_MAKERS: Final[dict[Level, Callable[[_Host], Attester]]] = {
    Level.DEVELOPMENT: _development,
    Level.ATTESTED_HOST: _attested_host,
    Level.TEE: _tee,
    Level.GPU_TEE: _gpu_tee,
    Level.UNTRUSTED_GPU: _tee,  # of its servers nothing is asked (rule H10)
}
