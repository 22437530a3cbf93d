"""The one door to NVIDIA's packages, and the real driver behind it.

Packages are loaded when first asked for, never on import; the extra ``cuda`` brings them,
the driver library itself comes with the machine.

The first context is the GPU's primary one, which torch uses as well: memory and streams
of torch are valid here by their pointers. Every call makes its context current and
restores the one before, so torch never finds another than its own.
Source: CUDA driver API reference (``cuda.bindings`` is NVIDIA's public interface to it).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from sealift.channel.cuda.driver import (
    NEEDED_DRIVER,
    NOT_READY,
    Argument,
    CudaError,
    GpuFacts,
    Grid,
    PreparedCall,
    Residence,
    too_old,
)
from sealift.errors import UnavailableError

_PORTABLE: Final = 1  # CU_MEMHOSTALLOC_ and CU_MEMHOSTREGISTER_: for every context
_NON_BLOCKING: Final = 1
_DISABLE_TIMING: Final = 2
_NAME_BYTES: Final = 256
_HOST, _DEVICE = 1, 2  # CUmemorytype
_MOST_PLAIN_SHARED: Final = 48 << 10
_P, _U = ctypes.c_void_p, ctypes.c_uint
_QUICK: Final[dict[str, tuple[type, ...]]] = {
    "cuCtxPushCurrent": (_P,),
    "cuCtxPopCurrent": (_P,),
    "cuMemcpyHtoDAsync": (ctypes.c_uint64, _P, ctypes.c_size_t, _P),
    "cuMemcpyDtoHAsync": (_P, ctypes.c_uint64, ctypes.c_size_t, _P),
    "cuEventRecord": (_P, _P),
    "cuStreamWaitEvent": (_P, _P, _U),
    "cuLaunchKernel": (_P, *[_U] * 7, _P, _P, _P),
}
"""Their arguments, as ``cuda.h`` has them; none of them waits for the GPU."""


def open_driver(ordinal: int = 0) -> CudaDriver:
    """The primary context of a GPU.

    Raises:
        UnavailableError: without package, driver or GPU, or if the driver is too old;
            the line says what is needed and what was found.
    """
    cu = driver_bindings()
    try:
        _check(cu, "cuInit", 0)
        _require_version(cu)
        device = _check(cu, "cuDeviceGet", ordinal)
        context = _check(cu, "cuDevicePrimaryCtxRetain", device)
        return CudaDriver(cu, device, context, primary=True)
    except CudaError as fault:
        raise fault.to_error() from None


def ordinal_of(uuid: str) -> int:
    """The number that a GPU has here; another process may count in another order.

    Args:
        uuid: As NVML writes it.

    Raises:
        UnavailableError: if this process sees no such GPU.
    """
    cu = driver_bindings()
    try:
        _check(cu, "cuInit", 0)
        for ordinal in range(int(_check(cu, "cuDeviceGetCount"))):
            device = _check(cu, "cuDeviceGet", ordinal)
            found = UUID(bytes=bytes(_check(cu, "cuDeviceGetUuid", device).bytes))
            if f"GPU-{found}" == uuid:
                return ordinal
    except CudaError as fault:
        raise fault.to_error() from None
    raise UnavailableError(
        "the recipe's GPU cannot be used by its parent",
        why=f"this process sees no {uuid}",
        code="no-gpu",
    )


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
        fix="In Sealift's folder, run: pip install '.[cuda]'",
        code="extra-missing",
    )


class CudaDriver:
    """One context of one GPU (see ``driver.Driver``)."""

    def __init__(self, cu: Any, device: Any, context: Any, *, primary: bool) -> None:
        self._cu = cu
        self._device = device
        self._context = context
        self._primary = primary
        self._closed = False
        self.facts = self._read_facts()
        self._quick = {name: _quick(cu, name, kinds) for name, kinds in _QUICK.items()}

    def allocate(self, nbytes: int) -> int:
        """Device memory."""
        return int(self._ask_for(nbytes, "cuMemAlloc", nbytes))

    def free(self, address: int) -> None:
        """Give device memory back."""
        self._ask("cuMemFree", self._cu.CUdeviceptr(address))

    def allocate_host(self, nbytes: int) -> int:
        """Host memory that the driver says is pinned."""
        return int(self._ask_for(nbytes, "cuMemHostAlloc", nbytes, _PORTABLE))

    def free_host(self, address: int) -> None:
        """Give it back."""
        self._ask("cuMemFreeHost", address)

    def pin_host(self, address: int, nbytes: int) -> None:
        """Pin host memory that is there."""
        self._ask_for(nbytes, "cuMemHostRegister", address, nbytes, _PORTABLE)

    def unpin_host(self, address: int) -> None:
        """Let it go."""
        self._ask("cuMemHostUnregister", address)

    def residence(self, address: int) -> Residence:
        """Where the driver knows this address to lie."""
        names = self._cu.CUpointer_attribute
        try:
            managed = self._pointer(names.CU_POINTER_ATTRIBUTE_IS_MANAGED, address)
            kind = self._pointer(names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
            owner = self._pointer(names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
        except CudaError as fault:
            if fault.ends_context:
                raise
            return Residence.UNKNOWN  # ordinary host memory: invalid value
        if managed:
            return Residence.MANAGED
        if kind == _DEVICE and owner != int(self._device):
            return Residence.OTHER_DEVICE
        known = {_HOST: Residence.PINNED, _DEVICE: Residence.DEVICE}
        return known.get(kind, Residence.UNKNOWN)

    def free_bytes(self) -> int:
        """Device memory that is free now."""
        return int(self._ask("cuMemGetInfo")[0])

    def stream(self) -> Any:
        """A new stream that does not wait for the default stream."""
        return self._ask("cuStreamCreate", _NON_BLOCKING)

    def foreign_stream(self, pointer: int) -> Any:
        """Somebody else's stream, by its pointer."""
        return self._cu.CUstream(pointer)

    def event(self, *, timed: bool = False) -> Any:
        """A new event."""
        return self._ask("cuEventCreate", 0 if timed else _DISABLE_TIMING)

    def copy_to_device(self, to: int, origin: int, nbytes: int, stream: Any) -> None:
        """Queue a copy from host memory."""
        target = self._cu.CUdeviceptr(to)
        self._ask("cuMemcpyHtoDAsync", target, origin, nbytes, stream)

    def copy_to_host(self, to: int, origin: int, nbytes: int, stream: Any) -> None:
        """Queue a copy to host memory."""
        source = self._cu.CUdeviceptr(origin)
        self._ask("cuMemcpyDtoHAsync", to, source, nbytes, stream)

    def copy_on_device(self, to: int, origin: int, nbytes: int, stream: Any) -> None:
        """Queue a copy inside the device."""
        place = self._cu.CUdeviceptr
        self._ask("cuMemcpyDtoDAsync", place(to), place(origin), nbytes, stream)

    def copy_to_context(
        self, other: Any, to: int, origin: int, nbytes: int, stream: Any
    ) -> None:
        """Queue a copy of this context's memory into that of another of this GPU."""
        place = self._cu.CUdeviceptr
        self._ask(
            "cuMemcpyPeerAsync",
            place(to), other.context, place(origin), self._context, nbytes, stream,
        )  # fmt: skip

    def zero(self, address: int, nbytes: int, stream: Any) -> None:
        """Queue overwriting device memory with zeroes."""
        self._ask("cuMemsetD8Async", self._cu.CUdeviceptr(address), 0, nbytes, stream)

    def record(self, event: Any, stream: Any) -> None:
        """Queue ``event`` behind what ``stream`` was given so far."""
        self._ask("cuEventRecord", event, stream)

    def wait(self, stream: Any, event: Any) -> None:
        """What ``stream`` is given from now on waits for ``event``."""
        self._ask("cuStreamWaitEvent", stream, event, 0)

    def is_done(self, event: Any) -> bool:
        """Whether what ``event`` stands behind has finished."""
        try:
            self._ask("cuEventQuery", event)
        except CudaError as fault:
            if fault.number == NOT_READY:
                return False
            raise
        return True

    def synchronize(self, event: Any) -> None:
        """Return when what ``event`` stands behind has finished; the GIL is free."""
        self._ask("cuEventSynchronize", event)

    def seconds_between(self, first: Any, second: Any) -> float:
        """Time on the device between two timed events."""
        return float(self._ask("cuEventElapsedTime", first, second)) / 1000

    def load(self, code: bytes) -> Any:
        """A module from the bytes that the compiler made."""
        return self._ask("cuModuleLoadData", code)

    def kernel(self, module: Any, name: str) -> Any:
        """One kernel of a module."""
        return self._ask("cuModuleGetFunction", module, name.encode())

    def launch(
        self, kernel: Any, grid: Grid, arguments: Sequence[Argument], stream: Any
    ) -> None:
        """Queue a kernel; the driver copies the arguments before it returns."""
        if grid.shared_bytes > _MOST_PLAIN_SHARED:
            names = self._cu.CUfunction_attribute
            most = names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._ask("cuFuncSetAttribute", kernel, most, grid.shared_bytes)
        pointers = _pointers(arguments)
        self._ask(
            "cuLaunchKernel", kernel, grid.blocks, 1, 1, grid.threads, 1, 1,
            grid.shared_bytes, stream, ctypes.addressof(pointers), 0,
        )  # fmt: skip

    def copy_call(self, to: int, origin: int, nbytes: int, stream: Any) -> PreparedCall:
        """``copy_to_device``, from pinned memory."""
        return self._call("cuMemcpyHtoDAsync", to, origin, nbytes, int(stream))

    def copy_back_call(
        self, to: int, origin: int, nbytes: int, stream: Any
    ) -> PreparedCall:
        """``copy_to_host``, to pinned memory."""
        return self._call("cuMemcpyDtoHAsync", to, origin, nbytes, int(stream))

    def record_call(self, event: Any, stream: Any) -> PreparedCall:
        """``record``."""
        return self._call("cuEventRecord", int(event), int(stream))

    def wait_call(self, stream: Any, event: Any) -> PreparedCall:
        """``wait``."""
        return self._call("cuStreamWaitEvent", int(stream), int(event), 0)

    def launch_call(
        self, kernel: Any, grid: Grid, arguments: Sequence[Argument], stream: Any
    ) -> PreparedCall:
        """``launch``; the driver copies the arguments when the call is made."""
        pointers = _pointers(arguments)
        return PreparedCall(
            "cuLaunchKernel", self._quick["cuLaunchKernel"],
            (int(kernel), grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared_bytes,
             int(stream), ctypes.addressof(pointers), None),
            (pointers, arguments),
        )  # fmt: skip

    def issue(self, calls: Iterable[PreparedCall]) -> None:
        """Make calls that only queue something; see ``_QUICK``."""
        self._make(self._call("cuCtxPushCurrent", int(self._context)))
        try:
            for call in calls:
                self._make(call)
        finally:
            before = ctypes.c_void_p()
            self._make(self._call("cuCtxPopCurrent", ctypes.addressof(before)))

    def _make(self, call: PreparedCall) -> None:
        name, make, arguments, _ = call
        if number := make(*arguments):
            raise CudaError(name, number, self._cu.CUresult(number).name)

    def _call(self, name: str, *arguments: int) -> PreparedCall:
        return PreparedCall(name, self._quick[name], arguments)

    def release(self, thing: Any) -> None:
        """Give a stream, event or module back."""
        calls = {
            self._cu.CUstream: "cuStreamDestroy",
            self._cu.CUevent: "cuEventDestroy",
            self._cu.CUmodule: "cuModuleUnload",
        }
        with suppress(CudaError):  # with its context it is gone anyhow
            self._ask(calls[type(thing)], thing)

    def allocate_shared(self, nbytes: int) -> tuple[int, int]:
        """Device memory that another process can map: address, and a descriptor of it."""
        names, size = self._cu, self._in_pages(nbytes)
        kind = names.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        try:
            handle = self._ask("cuMemCreate", size, self._shareable(), 0)
        except CudaError as fault:
            fault.asked_bytes = size
            raise
        try:
            address = self._map(handle, size)
            try:
                shared = self._ask("cuMemExportToShareableHandle", handle, kind, 0)
            except CudaError:
                self.free_shared(address, nbytes)
                raise
        finally:  # the mapping keeps the memory
            self._ask("cuMemRelease", handle)
        return address, int(shared)

    def map_shared(self, descriptor: int, nbytes: int) -> int:
        """Map what another process allocated; the descriptor can be closed then."""
        names = self._cu
        kind = names.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        handle = self._ask("cuMemImportFromShareableHandle", descriptor, kind)
        try:
            return self._map(handle, self._in_pages(nbytes))
        finally:
            self._ask("cuMemRelease", handle)

    def free_shared(self, address: int, nbytes: int) -> None:
        """Give a mapping back; the memory goes with the last one."""
        place, size = self._cu.CUdeviceptr(address), self._in_pages(nbytes)
        self._ask("cuMemUnmap", place, size)
        self._ask("cuMemAddressFree", place, size)

    def _map(self, handle: Any, size: int) -> int:
        names = self._cu
        place = self._ask("cuMemAddressReserve", size, 0, names.CUdeviceptr(0), 0)
        try:
            self._ask("cuMemMap", place, size, 0, handle, 0)
        except CudaError:
            self._ask("cuMemAddressFree", place, size)
            raise
        rights = names.CUmemAccessDesc()
        rights.location = self._shareable().location
        rights.flags = names.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        try:
            self._ask("cuMemSetAccess", place, size, [rights], 1)
        except CudaError:
            self.free_shared(int(place), size)
            raise
        return int(place)

    def _shareable(self) -> Any:
        names = self._cu
        wanted = names.CUmemAllocationProp()
        wanted.type = names.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.requestedHandleTypes = (
            names.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        )
        wanted.location.type = names.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = int(self._device)
        return wanted

    def _in_pages(self, nbytes: int) -> int:
        names = self._cu
        least = names.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        page = int(self._ask("cuMemGetAllocationGranularity", self._shareable(), least))
        return max(1, -(-nbytes // page)) * page

    def another_context(self) -> CudaDriver:
        """Another context of the same GPU, with a channel of its own."""
        context = _check(self._cu, "cuCtxCreate", None, 0, self._device)
        _check(self._cu, "cuCtxPopCurrent")  # creation left it current here
        return CudaDriver(self._cu, self._device, context, primary=False)

    @property
    def context(self) -> Any:
        """The driver's handle of this context."""
        return self._context

    def close(self) -> None:
        """Give the context back; a GPU that is gone is no reason to fail."""
        if self._closed:
            return
        self._closed = True
        with suppress(CudaError):
            if self._primary:
                _check(self._cu, "cuDevicePrimaryCtxRelease", self._device)
            else:
                _check(self._cu, "cuCtxDestroy", self._context)

    def _pointer(self, attribute: Any, address: int) -> Any:
        return self._ask(
            "cuPointerGetAttribute", attribute, self._cu.CUdeviceptr(address)
        )

    def _ask_for(self, nbytes: int, call: str, *arguments: Any) -> Any:
        try:
            return self._ask(call, *arguments)
        except CudaError as fault:
            fault.asked_bytes = nbytes
            raise

    def _ask(self, call: str, *arguments: Any) -> Any:
        _check(self._cu, "cuCtxPushCurrent", self._context)
        try:
            return _check(self._cu, call, *arguments)
        finally:
            _check(self._cu, "cuCtxPopCurrent")

    def _read_facts(self) -> GpuFacts:
        cu, device = self._cu, self._device
        name = _check(cu, "cuDeviceGetName", _NAME_BYTES, device)
        return GpuFacts(
            name=name.split(b"\0")[0].decode("ascii", "replace"),
            capability=(
                self._attribute("COMPUTE_CAPABILITY_MAJOR"),
                self._attribute("COMPUTE_CAPABILITY_MINOR"),
            ),
            multiprocessors=self._attribute("MULTIPROCESSOR_COUNT"),
            memory_bytes=int(_check(cu, "cuDeviceTotalMem", device)),
            driver=int(_check(cu, "cuDriverGetVersion")),
            copy_engines=self._attribute("ASYNC_ENGINE_COUNT"),
        )

    def _attribute(self, name: str) -> int:
        attribute = getattr(self._cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_check(self._cu, "cuDeviceGetAttribute", attribute, self._device))


def _pointers(arguments: Sequence[Argument]) -> ctypes.Array[ctypes.c_void_p]:
    """What a launch is told of its arguments, which must live as long as this does."""
    return (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))


def _quick(cu: Any, name: str, kinds: Sequence[type]) -> Callable[..., int]:
    """The driver's own function behind a call.

    It keeps the interpreter: a thread that gives it up at each of a hundred calls waits
    for it as often, up to five milliseconds each time. So only for calls that return at
    once: copies from pinned memory outside of confidential mode, and few enough of all
    that no queue of the driver's is ever full (it holds 1,024).
    """
    legacy = cu.CUdriverProcAddress_flags.CU_GET_PROC_ADDRESS_LEGACY_STREAM
    found = _check(cu, "cuGetProcAddress", name.encode(), NEEDED_DRIVER, legacy)
    if not found[0]:
        raise CudaError(f"cuGetProcAddress({name})", 500, "CUDA_ERROR_NOT_FOUND")
    return ctypes.PYFUNCTYPE(ctypes.c_int, *kinds)(int(found[0]))


def _require_version(cu: Any) -> None:
    found = int(_check(cu, "cuDriverGetVersion"))
    if found < NEEDED_DRIVER:
        raise too_old(found)


def _check(cu: Any, call: str, *arguments: Any) -> Any:
    """What the call returned besides its code; ``CudaError`` if that is no success."""
    try:
        code, *values = getattr(cu, call)(*arguments)
    except RuntimeError as error:  # no libcuda, or one without this call
        raise _no_library(call, error) from None
    number = int(code)
    if number:
        raise CudaError(call, number, getattr(code, "name", str(code)))
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


def _no_library(call: str, error: RuntimeError) -> UnavailableError:
    if call == "cuInit":
        return UnavailableError(
            "this process cannot use an NVIDIA GPU",
            why="the driver library libcuda.so.1 is not on this machine",
            code="no-gpu",
        )
    return UnavailableError(
        "the NVIDIA driver is too old",
        why=f"it has no {call} ({error})",
        code="gpu-driver-too-old",
    )
