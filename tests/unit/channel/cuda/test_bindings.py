"""The real driver over NVIDIA's real bindings, and under them a libcuda without a GPU.

Each program runs in a process of its own: a libcuda stays loaded. What they show is that
every call is made as the bindings take it. What they cannot show is a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.sim.gcc_kernels import host_library
from tests.sim.hostcuda_library import library

ROOT = Path(__file__).resolve().parents[4]
BEGIN = f"""
import ctypes
ctypes.CDLL({str(library())!r}, mode=ctypes.RTLD_GLOBAL)
from sealift.channel.cuda.bindings import open_driver
"""

CALLS = """
from sealift.channel.cuda.driver import Residence
driver = open_driver()
facts = driver.facts
assert facts.capability == (9, 0) and facts.copy_engines == 2, facts
assert "without a GPU" in facts.name
device, host = driver.allocate(1000), driver.allocate_host(100)
kinds = [driver.residence(at) for at in (device, host, id(driver))]
assert kinds == [Residence.DEVICE, Residence.PINNED, Residence.UNKNOWN]
strange = driver.allocate(77)
assert driver.residence(strange) is Residence.OTHER_DEVICE
driver.free(strange)
assert driver.free_bytes() == facts.memory_bytes - 1000
stream, event = driver.stream(), driver.event()
ctypes.memset(host, 7, 100)
driver.zero(device, 1000, stream)
driver.copy_to_device(device, host, 50, stream)
driver.copy_on_device(device + 500, device + 25, 50, stream)
driver.record(event, stream)
driver.wait(stream, event)
driver.synchronize(event)
assert driver.is_done(event)
assert ctypes.string_at(device + 500, 50) == bytes([7] * 25 + [0] * 25)
driver.issue([
    driver.copy_call(device + 600, host, 50, stream),
    driver.record_call(event, stream),
    driver.wait_call(stream, event),
])
assert ctypes.string_at(device + 600, 50) == bytes([7] * 50)
mine = bytearray(5000)
at = ctypes.addressof(ctypes.c_char.from_buffer(mine))
driver.pin_host(at, 5000)
assert driver.residence(at + 4000) is Residence.PINNED
driver.unpin_host(at)
assert driver.residence(at) is Residence.UNKNOWN
other = driver.another_context()
there = other.allocate(64)
other.copy_to_device(there, host, 64, other.stream())
other.copy_to_context(driver, device, there, 64, other.stream())
assert ctypes.string_at(device, 64) == bytes([7] * 64)
other.free(there)
other.close()
assert driver.seconds_between(driver.event(timed=True), driver.event(timed=True)) > 0
assert driver.foreign_stream(0) is not None
for thing in (stream, event):
    driver.release(thing)
driver.free(device)
driver.free_host(host)
from sealift.channel.cuda.driver import CudaError
beyond = [driver.copy_call(device, host, 10, stream)]
for wrong in (
    lambda: driver.free(device),
    lambda: driver.load(b"no module"),
    lambda: driver.issue(beyond),
):
    try:
        wrong()
    except CudaError as fault:
        print(fault.number)
driver.close()
driver.close()
"""

SHARED = """
import os
from sealift.channel.cuda.driver import CudaError
driver = open_driver()
address, descriptor = driver.allocate_shared(5000)
again = driver.map_shared(descriptor, 5000)
os.close(descriptor)
ctypes.memset(address, 7, 5000)
print(ctypes.string_at(again + 4990, 2))
driver.free_shared(address, 5000)
print(ctypes.string_at(again, 1))
driver.free_shared(again, 5000)
try:
    driver.map_shared(99, 5000)
except CudaError as fault:
    print(fault.number)
driver.close()
"""

NUMBERED = """
from sealift.channel.cuda.bindings import ordinal_of
from sealift.errors import SealiftError
print(ordinal_of("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"))
try:
    ordinal_of("GPU-ff010203-0405-0607-0809-0a0b0c0d0e0f")
except SealiftError as error:
    print(error.code)
"""

WHOLE = """
import sys
from sealift.channel.cuda.staging import GpuProtection
from sealift.channel.cuda.opening import open_cuda
from sealift.channel.cuda.opening import EDGES, self_test
from tests.sim.cuda_engines import GccKernels
for confidential in (False, True):
    engine = open_cuda(
        kernels=GccKernels(),
        protection=lambda: GpuProtection(confidential),
        test=lambda engine: self_test(engine, lengths=EDGES[:18]),
        sink=lambda event: print(event.fields["contexts"]),
    )
    engine.close()
"""

FULL = """
from sealift.errors import SealiftError
from sealift.channel.cuda.opening import open_cuda
try:
    open_cuda()
except SealiftError as error:
    print(error.code, error)
"""


def run(program: str, **environment: object) -> str:
    setting = {name: str(value) for name, value in environment.items()}
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    found = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env={**os.environ, "PYTHONPATH": paths, **setting},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_every_call_is_made_as_the_bindings_take_it():
    assert run(CALLS).split() == ["1", "200", "1"]


def test_memory_that_two_processes_map_is_one_memory():
    assert run(SHARED).split() == [r"b'\x07\x07'", r"b'\x07'", "1"]


def test_a_gpu_is_found_by_its_own_name() -> None:
    assert run(NUMBERED).split() == ["0", "no-gpu"]


def test_engine_driver_bindings_and_kernels_together_pass_the_self_test():
    assert run(WHOLE, SEALIFT_HOST_KERNELS=host_library()).split() == ["1", "3"]


def test_an_old_driver_and_a_full_gpu_are_one_line_each():
    said = run(FULL, SEALIFT_HOST_CUDA_VERSION=12_040)
    assert said.startswith(
        "gpu-driver-too-old the NVIDIA driver is too old: it supports"
    )
    assert "12.4; 13.0 is needed" in said
    said = run(FULL, SEALIFT_HOST_CUDA_BYTES=1000)
    assert said.startswith("device-out-of-memory the device has no room for")
