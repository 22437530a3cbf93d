"""NVML without a GPU: what `pynvml` offers for confidential computing.

The same functions, structures (those of nvidia-ml-py itself, when they are the caller's)
and error class. Reports come from software devices, or are recorded ones, which answer
only the nonce they were recorded with. **No real NVML was ever asked by these tests.**
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pynvml


class Answering(Protocol):
    """A device that reports."""

    def report(self, nonce: bytes) -> bytes: ...

    def pem(self) -> bytes: ...


@dataclass
class Replayed:
    """A recorded device."""

    recorded: bytes
    chain: bytes

    def report(self, nonce: bytes) -> bytes:
        if nonce != self.recorded[4:36]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return self.recorded

    def pem(self) -> bytes:
        return self.chain


@dataclass
class FakeNvml:
    """Stands in the place of the module; attributes are what a test sets."""

    devices: Sequence[Answering]
    environment: int = pynvml.NVML_CC_SYSTEM_ENVIRONMENT_PROD
    feature: int = pynvml.NVML_CC_SYSTEM_FEATURE_ENABLED
    devtools: int = pynvml.NVML_CC_SYSTEM_DEVTOOLS_MODE_OFF
    multi_gpu: int = pynvml.NVML_CC_SYSTEM_MULTIGPU_NONE
    ready: int = pynvml.NVML_CC_ACCEPTING_CLIENT_REQUESTS_FALSE
    settings_error: int = pynvml.NVML_SUCCESS
    padding: int = 0
    broken: bool = False
    calls: list[str] = field(default_factory=list)

    NVMLError = pynvml.NVMLError
    c_nvmlSystemConfComputeSettings_v1_t = (  # noqa: N815 - NVML's name
        pynvml.c_nvmlSystemConfComputeSettings_v1_t
    )

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Answering:  # noqa: N802
        if not 0 <= index < len(self.devices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self.devices[index]

    def nvmlDeviceGetConfComputeGpuAttestationReport(  # noqa: N802
        self, device: Answering, nonce: bytes
    ) -> Any:
        if self.broken or len(nonce) != pynvml.NVML_CC_GPU_CEC_NONCE_SIZE:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        raw = device.report(nonce) + bytes(self.padding)
        answer = pynvml.c_nvmlConfComputeGpuAttestationReport_t()
        answer.attestationReport[: len(raw)] = raw
        answer.attestationReportSize = len(raw)
        return answer

    def nvmlDeviceGetConfComputeGpuCertificate(  # noqa: N802
        self, device: Answering
    ) -> Any:
        raw = device.pem()
        answer = pynvml.c_nvmlConfComputeGpuCertificate_t()
        answer.attestationCertChain[: len(raw)] = raw
        answer.attestationCertChainSize = len(raw)
        return answer

    def nvmlSystemGetConfComputeSettings(self, pointer: Any) -> int:  # noqa: N802
        settings = pointer._obj  # a structure by value would end in the driver's abort
        assert settings.version == pynvml.nvmlSystemConfComputeSettings_v1
        settings.environment = self.environment
        settings.ccFeature = self.feature
        settings.devToolsMode = self.devtools
        settings.multiGpuMode = self.multi_gpu
        return self.settings_error

    def nvmlSystemGetConfComputeGpusReadyState(self) -> int:  # noqa: N802
        return self.ready

    def nvmlSystemSetConfComputeGpusReadyState(self, state: int) -> int:  # noqa: N802
        self.calls.append("ready")
        self.ready = state
        return pynvml.NVML_SUCCESS
