"""Collects reports of NVIDIA GPUs through NVML, and measures what the driver says.

NVML comes with the extra ``nvidia`` and the driver. It reaches GPUs only: switches
answer through another library of NVIDIA's (NSCQ), which has no Python binding.
Source: NVML API reference, confidential compute; nvidia-ml-py.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from sealift.attest.evidence import Evidence, require_bound
from sealift.attest.nvidia.evidence import (
    NONCE_BYTES,
    NvidiaBody,
    parse_report,
)
from sealift.attest.runtimelog import (
    BoundDevice,
    Environment,
    GpuBinding,
    MultiGpu,
    RuntimeEvent,
)
from sealift.crypto.certificate import Certificate, certificates_from_pem
from sealift.errors import MalformedError, UnavailableError

_ENVIRONMENTS: Final[Mapping[int, Environment]] = {
    0: "unavailable",
    1: "simulation",
    2: "production",
}
_MULTI_GPU: Final[Mapping[int, MultiGpu]] = {0: "none", 1: "ppcie", 2: "nvle"}
_ON: Final = 1
_ACCEPTING: Final = 1


def open_nvml() -> Any:
    """NVML, initialised.

    Raises:
        UnavailableError: without the package, the driver or a GPU.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise UnavailableError(
            "this machine cannot ask NVIDIA GPUs for evidence",
            why="nvidia-ml-py is not installed",
            fix="In Sealift's folder, run: pip install '.[nvidia]'",
            code="extra-missing",
        ) from None
    _ask(nvml, "nvmlInit")
    return nvml


class NvidiaAttester:
    """Asks one GPU.

    Args:
        nvml: The module ``pynvml``, initialised, or what behaves like it.
        place: Index of the GPU in NVML's order.
    """

    def __init__(self, nvml: Any, place: int) -> None:
        self._nvml = nvml
        self._device = _ask(nvml, "nvmlDeviceGetHandleByIndex", place)

    def collect(self, bound: bytes) -> Evidence:
        """Evidence over ``bound``, the nonce of the request.

        Raises:
            UsageError: if ``bound`` has not 2 to 32 bytes.
            UnavailableError: if the GPU does not answer, or not in its form.
        """
        require_bound(bound, NONCE_BYTES)
        answer = _ask(
            self._nvml,
            "nvmlDeviceGetConfComputeGpuAttestationReport",
            self._device,
            bound.ljust(NONCE_BYTES, b"\0"),
        )
        raw = bytes(answer.attestationReport)[: answer.attestationReportSize]
        chain = tuple(each.der for each in self.certificates())
        try:
            parse_report(raw)
            body = NvidiaBody(report=raw, certificates=chain)
        except MalformedError as error:
            raise _unavailable(str(error)) from None
        return body.to_evidence()

    def certificates(self) -> tuple[Certificate, ...]:
        """The chain of the key that signs reports, leaf first."""
        answer = _ask(
            self._nvml, "nvmlDeviceGetConfComputeGpuCertificate", self._device
        )
        pem = bytes(answer.attestationCertChain)[: answer.attestationCertChainSize]
        try:
            return certificates_from_pem(pem)
        except MalformedError as error:
            raise _unavailable(str(error)) from None

    def to_bound_device(self) -> BoundDevice:
        """How a binding names this GPU."""
        leaf = self.certificates()[0]
        return BoundDevice(kind="gpu", id=str(leaf.serial), key=leaf.spki_digest)


def gpu_attesters(nvml: Any) -> tuple[NvidiaAttester, ...]:
    """An attester for each GPU, in NVML's order."""
    count = _ask(nvml, "nvmlDeviceGetCount")
    return tuple(NvidiaAttester(nvml, place) for place in range(count))


def read_gpu_state(nvml: Any, devices: tuple[BoundDevice, ...]) -> GpuBinding:
    """What the driver says now.

    Raises:
        UnavailableError: if it does not say, or says what nobody knows.
    """
    settings = nvml.c_nvmlSystemConfComputeSettings_v1_t()
    # The binding hands its argument to C as it is, and returns the code of an error.
    refused = _ask(nvml, "nvmlSystemGetConfComputeSettings", ctypes.byref(settings))
    environment = _ENVIRONMENTS.get(settings.environment)
    multi_gpu = _MULTI_GPU.get(settings.multiGpuMode)
    if refused or environment is None or multi_gpu is None:
        raise _unavailable("the driver does not report how the GPUs are protected")
    return GpuBinding(
        environment=environment,
        confidential=settings.ccFeature == _ON,
        devtools=settings.devToolsMode == _ON,
        multi_gpu=multi_gpu,
        devices=devices,
    )


def bind_gpus(
    nvml: Any,
    measure: Callable[[RuntimeEvent], None],
    *,
    switches: tuple[BoundDevice, ...] = (),
) -> GpuBinding:
    """Measure the state of all GPUs, then let them accept work. Once per boot.

    Args:
        nvml: As for ``NvidiaAttester``.
        measure: Extends the lead attester's register.
        switches: Named by whoever can ask them; they follow the GPUs.

    Raises:
        UnavailableError: if they accept work already, or are not closed to the host.
    """
    if _ask(nvml, "nvmlSystemGetConfComputeGpusReadyState") == _ACCEPTING:
        raise _unavailable("the GPUs accepted work before they were measured")
    gpus = tuple(each.to_bound_device() for each in gpu_attesters(nvml))
    binding = read_gpu_state(nvml, (*gpus, *switches))
    if not gpus or not binding.protects:
        raise _unavailable(f"{len(gpus)} GPUs: {binding.say_state()}")
    measure(binding.to_event())
    _ask(nvml, "nvmlSystemSetConfComputeGpusReadyState", _ACCEPTING)
    return binding


def _ask(nvml: Any, name: str, *arguments: object) -> Any:
    try:
        return getattr(nvml, name)(*arguments)
    except nvml.NVMLError as error:
        raise _unavailable(f"{name}: {error}") from None


def _unavailable(why: str) -> UnavailableError:
    return UnavailableError(
        "the GPUs of this machine cannot make evidence",
        why=why,
        code="gpu-unavailable",
    )
