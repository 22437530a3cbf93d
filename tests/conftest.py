"""What a test may need of its machine, and what becomes of tests that lack it.

A test says by a marker what it needs (`gpu`, `tpm`). Where the machine lacks that, the
test is skipped, the reason printed and counted. Any other skip hides a test that this
machine could have run: it is allowed at a desk, and a failure where `CI=true`.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.sim import lockorder
from tests.sim.vectors import vectors_folder

# How long an example takes says more about the machine than about the code. In CI,
# hypothesis itself makes its examples repeatable.
settings.register_profile("sealift", deadline=None)
settings.load_profile("sealift")

IN_CI = os.environ.get("CI") == "true"
LACKS = "this machine lacks "


def _lacks_gpu() -> str | None:
    if not Path("/dev/nvidiactl").exists():
        return "an NVIDIA GPU (no /dev/nvidiactl)"
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return "torch"
    return None if torch.cuda.is_available() else "a torch build for its NVIDIA GPU"


def _lacks_tpm() -> str | None:
    device = Path("/dev/tpmrm0")
    if not device.exists():
        return "a TPM 2.0 (no /dev/tpmrm0)"
    return None if os.access(device, os.R_OK | os.W_OK) else f"permission for {device}"


def _lacks_program(program: str, package: str) -> Callable[[], str | None]:
    def lacks() -> str | None:
        found = shutil.which(program)
        return None if found else f"{program} (apt-get install {package})"

    return lacks


def _lacks_vectors() -> str | None:
    folder = vectors_folder()
    return None if folder.is_dir() else f"the evidence vectors ({folder})"


def _lacks_guest() -> str | None:
    lacks: Callable[[], str | None] = importlib.import_module(
        "tests.sim.guest"
    ).lacks_guest
    return lacks()


def _lacks_kernel_compiler() -> str | None:
    compilers = importlib.import_module("sealift.channel.cuda.compilers")
    found = compilers.installed_compilers()
    return None if found else "a CUDA compiler (pip install nvidia-cuda-nvrtc)"


# Marker -> what the machine lacks for it, or None.
NEEDS: dict[str, Callable[[], str | None]] = {
    "gcc": _lacks_program("g++", "g++"),
    "gpu": _lacks_gpu,
    "kernelcompiler": _lacks_kernel_compiler,
    "guest": _lacks_guest,
    "tpm": _lacks_tpm,
    "swtpm": _lacks_program("swtpm", "swtpm"),
    "vectors": _lacks_vectors,
}


lockorder.install()  # before any module makes one


@pytest.fixture(scope="session", autouse=True)
def locks_are_taken_in_one_order() -> Iterator[None]:
    """At the end of a run: every pair of locks that was taken is as it is written down.

    Each worker of a run looks at what its own tests took.
    """
    yield
    order = lockorder.written_order(lockorder.TABLE.read_text())
    wrong = lockorder.wrong_pairs(lockorder.RECORDER.pairs, order)
    assert not wrong, "\n".join(["see docs/reference/locks.md", *wrong])


@pytest.fixture(scope="session", autouse=True)
def real_passphrase_cost() -> Iterator[int]:
    """The cost of a passphrase, which key files that tests make do not ask for.

    Every role of every job would pay it. What commands write costs what it says.
    """
    identity = importlib.import_module("sealift.crypto.identity")
    real: int = identity.SCRYPT_LOG2_N
    identity.SCRYPT_LOG2_N = 10  # the lowest that a file may ask for
    yield real
    identity.SCRYPT_LOG2_N = real


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what the machine cannot run; let process-starting tests run one at a time."""
    for item in items:
        if item.get_closest_marker("distributed"):
            item.add_marker(pytest.mark.xdist_group("distributed"))
            if not item.get_closest_marker("timeout"):  # processes take their time
                item.add_marker(pytest.mark.timeout(180))
        if item.get_closest_marker("guest"):
            item.add_marker(pytest.mark.xdist_group("guest"))  # it boots once
        for name in NEEDS.keys() & {mark.name for mark in item.iter_markers()}:
            if lacking := NEEDS[name]():
                item.add_marker(pytest.mark.skip(reason=LACKS + lacking))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Number long values: all workers need the same names, and some hold random keys."""
    return argname if isinstance(val, bytes | str) and len(val) > 60 else None


def _refuse_hidden_skip(report: Any) -> None:
    if not (IN_CI and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = str(
        report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    )
    if LACKS not in reason:
        report.outcome = "failed"
        report.longrepr = f"a test that this machine could run was skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """In CI, turn a skip without a lacking machine into a failure."""
    report = yield
    _refuse_hidden_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """The same for whole files (`importorskip`, `allow_module_level`)."""
    report = yield
    _refuse_hidden_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what tests recorded as figures (``record_property("figure", line)``)."""
    passed = terminalreporter.stats.get("passed", [])
    lines = [
        text
        for each in passed
        for name, text in each.user_properties
        if name == "figure"
    ]
    if lines:
        terminalreporter.section("figures")
    for line in lines:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def _commands_do_not_watch_this_process() -> None:
    """A command run in here may not start the thread that ends a stopping process."""
    importlib.import_module("sealift.cli.signals")._State.watched = True


@pytest.fixture(scope="session")
def guest_host() -> Iterator[Any]:
    """The attested host (`tests.sim.guest.GuestHost`), booted for the first that asks."""
    boot = importlib.import_module("tests.sim.guest").guest_host
    with boot() as host:
        yield host
