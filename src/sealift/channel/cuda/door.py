"""The one door to NVIDIA's packages: loaded when first asked for, never on import.

The extra ``cuda`` brings them; the driver library itself comes with the machine.
"""

from __future__ import annotations

from typing import Any

from sealift.errors import UnavailableError


def driver_bindings() -> Any:
    """``cuda.bindings.driver``: the driver interface, call for call.

    Raises:
        UnavailableError: if the package is not installed.
    """
    try:
        import cuda.bindings.driver as driver
    except ImportError as error:
        raise _missing("cuda-bindings", error) from None
    return driver


def nvrtc_bindings() -> Any:
    """``cuda.bindings.nvrtc``: the run-time compiler.

    Raises:
        UnavailableError: if the package is not installed.
    """
    try:
        import cuda.bindings.nvrtc as nvrtc
    except ImportError as error:
        raise _missing("cuda-bindings", error) from None
    return nvrtc


def nvml() -> Any:
    """``pynvml``, initialised; it asks the driver about the machine's state.

    Raises:
        UnavailableError: without the package, or without a driver that answers.
    """
    try:
        import pynvml
    except ImportError as error:
        raise _missing("nvidia-ml-py", error) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnavailableError(
            "the NVIDIA driver does not answer", why=error, code="no-gpu"
        ) from None
    return pynvml


def _missing(package: str, error: ImportError) -> UnavailableError:
    return UnavailableError(
        "NVIDIA GPUs cannot be used here",
        why=f"{package} cannot be imported ({error})",
        fix="pip install 'sealift[cuda]'",
        code="extra-missing",
    )
