"""The temporary directory of one run of the tests: everybody's, looked at in the end.

Workers and the processes that they start inherit it (``TMPDIR``). What is dear to make
lies in it once for all workers. Pytest's own folders (`tmp_path`) lie beside it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

# Of a run in which every test passed; 1 would say that one of them failed.
LEFT_BEHIND = 7
PREFIX = "sealift-tests-"
SHARED = "shared"
# torch makes the folder of its compiler's cache when it is asked for the path.
NOT_OURS = {SHARED, "torchinductor_root"}


def begin() -> Path:
    """Make it, for this process and its children; runs that were killed left theirs."""
    beside = os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    for old in Path(beside).glob(f"{PREFIX}*-*"):
        if not Path("/proc", old.name.split("-")[2]).exists():
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    folder.chmod(0o711)  # some tests are another user for a while
    (folder / SHARED).mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


def end(folder: Path) -> list[str]:
    """Remove it; return the names of what somebody left."""
    left = sorted({path.name for path in folder.iterdir()} - NOT_OURS)
    shutil.rmtree(folder, ignore_errors=True)
    return left


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder that the first test process that wants it made; others wait for it."""
    folder = Path(tempfile.gettempdir(), SHARED, name)
    made = folder.with_name(f".{name}.made")
    with open(folder.with_name(f".{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
