"""Which device engine is taken, what is said, and what works without NVIDIA's packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sealift.channel.cuda import bindings
from sealift.channel.select import select_device
from sealift.crypto.aead import Suite
from sealift.errors import UnavailableError
from tests.sim.cuda_engines import model_gpu, opened_on
from tests.sim.cuda_standin import NAME


def open_standin(**options):
    return opened_on(model_gpu(), test=lambda _: None, **options)


def open_broken(**_):
    raise UnavailableError("engine cuda failed its self-test", code="engine-self-test")


def test_without_a_gpu_the_host_is_the_device():
    chosen = select_device(has_gpu=lambda: False, cuda=open_broken)
    assert chosen.reason == "host: this machine has no NVIDIA GPU"
    chosen.engine.close()


def test_with_a_gpu_it_is_taken_and_says_how_it_copies():
    said = []
    chosen = select_device(has_gpu=lambda: True, cuda=open_standin, sink=said.append)
    assert chosen.reason == "cuda: the GPU, which passed its self-test"
    assert said[0].fields["gpu"] == NAME
    chosen.engine.close()


@pytest.mark.parametrize("prefer", [None, "cuda"])
def test_a_gpu_that_cannot_be_used_is_never_replaced_silently(prefer):
    with pytest.raises(UnavailableError) as caught:
        select_device(prefer=prefer, has_gpu=lambda: True, cuda=open_broken)
    assert caught.value.code == "engine-self-test"
    chosen = select_device(prefer="host", has_gpu=lambda: True, cuda=open_broken)
    assert chosen.reason == "host: asked for by name"
    chosen.engine.close()


def test_other_names_and_suites_are_refused():
    with pytest.raises(UnavailableError, match="cuda, host") as caught:
        select_device(prefer="tpu")
    assert caught.value.code == "no-such-backend"

    class Narrow:
        name, closed = "narrow", False

        def suites(self):
            return (Suite.AES_256_GCM,)

        def close(self):
            self.closed = True

    engine = Narrow()
    with pytest.raises(UnavailableError) as caught:
        select_device(Suite(2), prefer="cuda", cuda=lambda **_: engine)
    assert caught.value.code == "no-such-suite"
    assert engine.closed


ALONE = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cuda", "pynvml", "numpy", "torch"):
            raise ImportError(f"there is no {name} here")
sys.meta_path.insert(0, Nothing())
import importlib, pkgutil, sealift, sealift.channel
for found in pkgutil.walk_packages(sealift.channel.__path__, "sealift.channel."):
    importlib.import_module(found.name)
from sealift.channel.select import select_device
from sealift.errors import UnavailableError
try:
    select_device(prefer="cuda")
except UnavailableError as error:
    print(error.code, error.exit_code, error)
print(select_device(prefer="host").reason)
"""


def test_without_nvidias_packages_all_of_it_imports_and_says_what_to_install():
    run = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    first, second = run.stdout.splitlines()
    assert first.startswith("extra-missing 3 NVIDIA GPUs cannot be used here")
    assert "pip install '.[cuda]'" in first
    assert second == "host: asked for by name"


class Library:
    """What `cuda.bindings.driver` is without a driver, or with an old one."""

    def __init__(self, found):
        self.found = found

    def cuInit(self, _):  # noqa: N802 - CUDA's name
        if self.found is None:
            raise RuntimeError("Failed to dlopen libcuda.so.1")
        return (0,)

    def cuDriverGetVersion(self):  # noqa: N802
        return (0, self.found)


def test_no_driver_and_an_old_one_are_told_apart(monkeypatch):
    monkeypatch.setattr(bindings, "driver_bindings", lambda: Library(None))
    with pytest.raises(UnavailableError, match=r"libcuda\.so\.1 is not") as caught:
        bindings.open_driver()
    assert caught.value.code == "no-gpu"
    monkeypatch.setattr(bindings, "driver_bindings", lambda: Library(12_080))
    with pytest.raises(UnavailableError) as caught:
        bindings.open_driver()
    assert caught.value.code == "gpu-driver-too-old"
    assert "12.8; 13.0 is needed" in str(caught.value)


@pytest.mark.parametrize("ask", [bindings.driver_bindings, bindings.nvrtc_bindings])
def test_the_door_says_what_is_missing(ask, monkeypatch):
    for name in ("cuda.bindings.driver", "cuda.bindings.nvrtc"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnavailableError) as caught:
        ask()
    assert (caught.value.code, caught.value.exit_code) == ("extra-missing", 3)
