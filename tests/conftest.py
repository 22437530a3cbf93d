"""What a test may need of its machine, and what becomes of tests that lack it.

A test says by a marker what it needs (`gpu`, `tpm`). Where the machine lacks that, the
test is skipped, the reason printed and counted. Any other skip hides a test that this
machine could have run: it is allowed at a desk, and a failure where `CI=true`.

Files that took long the last time (`tests/durations.json`) come first, so that workers
end together. A run has a temporary directory of its own, and fails if anything stays in it.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression
from hypothesis import settings

from tests.sim import durations, failures, lockorder, runfolder, warm, warmroles
from tests.sim.browser import CHROMIUM
from tests.sim.vectors import vectors_folder

# How long an example takes says more about the machine than about the code. In CI,
# hypothesis itself makes its examples repeatable.
settings.register_profile("thorough", deadline=None)
settings.register_profile("light", deadline=None, max_examples=20)
settings.load_profile("light")

IN_CI = os.environ.get("CI") == "true"
LACKS = "this machine lacks "


def _lacks_gpu() -> str | None:
    if not Path("/dev/nvidiactl").exists():
        return "an NVIDIA GPU (no /dev/nvidiactl)"
    # In a process of its own: one that has asked can fork none that computes there.
    ask = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    asked = subprocess.run(
        [sys.executable, "-c", ask], check=False, capture_output=True
    )
    return "a torch build for its NVIDIA GPU" if asked.returncode else None


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


def _lacks_chromium() -> str | None:
    return None if CHROMIUM else "Chromium (apt-get install chromium)"


def _lacks_vectors() -> str | None:
    folder = vectors_folder()
    return None if folder.is_dir() else f"the evidence vectors ({folder})"


def _lacks_guest() -> str | None:
    lacks: Callable[[], str | None] = importlib.import_module(
        "tests.sim.guest"
    ).lacks_guest
    return lacks()


def _lacks_hosts() -> str | None:
    lacks: Callable[[], str | None] = importlib.import_module(
        "tests.sim.hosts"
    ).lacks_hosts
    return lacks()


def _lacks_kernel_compiler() -> str | None:
    compilers = importlib.import_module("sealift.channel.cuda.compilers")
    found = compilers.installed_compilers()
    return None if found else "a CUDA compiler (pip install nvidia-cuda-nvrtc)"


def _lacks_ray() -> str | None:
    return None if importlib.util.find_spec("ray") else "Ray (make ray)"


# Marker -> what the machine lacks for it, or None.
NEEDS: dict[str, Callable[[], str | None]] = {
    "chromium": _lacks_chromium,
    "gcc": _lacks_program("g++", "g++"),
    "gpu": _lacks_gpu,
    "kernelcompiler": _lacks_kernel_compiler,
    "guest": _lacks_guest,
    "hosts": _lacks_hosts,
    "ray": _lacks_ray,
    "tpm": _lacks_tpm,
    "swtpm": _lacks_program("swtpm", "swtpm"),
    "vectors": _lacks_vectors,
}


def lacking(name: str) -> str | None:
    """What the machine lacks for a marker; asked once a run, whoever of its workers asks."""

    def ask(folder: Path) -> None:
        (folder / "lacking").write_text(NEEDS[name]() or "")

    told = runfolder.made_once(f"need-{name}", ask) / "lacking"
    return told.read_text() or None


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


@pytest.fixture(scope="session", autouse=True)
def real_connect() -> Iterator[Callable[..., Any]]:
    """How the product opens a database; in this process, nothing waits for the disk.

    Thousands of tests write, for milliseconds each, and nobody pulls the plug: what was
    written is there for whoever reads it. Processes that tests start wait as ever.
    """
    database = importlib.import_module("sealift.release.database")
    real: Callable[..., Any] = database._connect

    def connect(path: Path, *, read_only: bool) -> Any:
        connection = real(path, read_only=read_only)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(database, "_connect", connect)
        for name in ("fsync", "fdatasync"):
            patched.setattr(os, name, lambda _descriptor: None)
        yield real


@pytest.fixture
def commits_wait_for_the_disk(
    real_connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the product does; the fixture is asked for before the databases are opened."""
    monkeypatch.setattr("sealift.release.database._connect", real_connect)


FOLDER = pytest.StashKey[Path]()
FAILURES = pytest.StashKey[failures.Recorder]()
LEFT = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Durations are recorded on a quiet machine, by who asks for it; failures by CI."""
    parser.addoption("--record-durations", action="store_true", help="for next runs")
    parser.addoption("--failures", metavar="FILE", help="for scripts/rerun.py")


def pytest_configure(config: pytest.Config) -> None:
    """Who starts a run makes its temporary directory; its workers inherit it."""
    if hasattr(config, "workerinput"):
        return
    config.stash[FOLDER] = runfolder.begin()
    if config.getoption("--record-durations"):
        config.pluginmanager.register(durations.Recorder())
    if path := config.getoption("--failures"):
        config.stash[FAILURES] = failures.Recorder(Path(path))
        config.pluginmanager.register(config.stash[FAILURES])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of whose tests none can run: some load programs for seconds.

    Each worker would import all of them. A file that is asked for by its name is
    imported, so that pytest says what was deselected.
    """
    asked = config.option.markexpr
    if collection_path.suffix != ".py" or not asked or ".py" in "".join(config.args):
        return None
    return None if _may_run(collection_path.read_text(), asked) else True


def _may_run(source: str, asked: str) -> bool:
    """Whether a test in this file can have marks that ``-m`` asks for."""
    every = " ".join(re.findall(r"^pytestmark = (.+)$", source, re.MULTILINE))
    of_all, of_some = (
        set(re.findall(r"\bmark\.(\w+)", text)) for text in (every, source)
    )
    others = sorted((of_some - of_all) & set(re.findall(r"\w+", asked)))
    expression = Expression.compile(asked)
    return any(
        expression.evaluate({*of_all, *itertools.compress(others, chosen)}.__contains__)
        for chosen in itertools.product((False, True), repeat=len(others))
    )


@pytest.hookimpl(trylast=True)  # when it is known which tests run at all
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what the machine cannot run; begin with what takes long."""
    asked: dict[str, str | None] = {}
    for item in items:
        for name in NEEDS.keys() & {mark.name for mark in item.iter_markers()}:
            if name not in asked:
                asked[name] = lacking(name)
            if asked[name]:
                item.add_marker(pytest.mark.skip(reason=f"{LACKS}{asked[name]}"))
    durations.longest_first(items)


def pytest_collection_finish() -> None:
    """Thousands of tests are no garbage: the collector need not look at them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _what_a_file_leaves_open_is_its_own() -> Iterator[None]:
    """Python says so when its collector comes by, and the test that runs then fails.

    By itself the collector would come by in another file's tests, in any that makes much.
    """
    yield
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Recipes' processes and roles come from some that have their modules already."""
    for each in (warm, warmroles):
        each.install(cold=item.get_closest_marker("cold") is not None)


def pytest_unconfigure() -> None:
    """The templates end with the run."""
    for each in (warmroles, warm):
        each.end()


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
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """In CI, turn a skip without a lacking machine into a failure."""
    report = yield
    _refuse_hidden_skip(report)
    report.starts_processes = failures.starts_processes(item)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """The same for whole files (`importorskip`, `allow_module_level`)."""
    report = yield
    _refuse_hidden_skip(report)
    return report


@pytest.hookimpl(trylast=True)  # when the workers have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that leaves files behind has failed."""
    if FOLDER not in session.config.stash:
        return
    left = runfolder.end(session.config.stash[FOLDER])
    session.config.stash[LEFT] = left
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = runfolder.LEFT_BEHIND
    if FAILURES in session.config.stash:
        session.config.stash[FAILURES].write(session.exitstatus, left)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print what was left behind, and the figures of tests.

    A test records one by ``record_property("figure", line)``.
    """
    if left := config.stash.get(LEFT, []):
        terminalreporter.section("left behind in the temporary directory")
        terminalreporter.write_line("\n".join(left))
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
    importlib.import_module("sealift.train.job.signals")._State.watched = True


@pytest.fixture(scope="session")
def guest_host() -> Iterator[Any]:
    """The attested host (`tests.sim.guest.GuestHost`), booted for the first that asks."""
    boot = importlib.import_module("tests.sim.guest").guest_host
    with boot() as host:
        yield host
