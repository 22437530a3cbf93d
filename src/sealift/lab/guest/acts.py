"""Inside the guest: what a host must not do, done for real. Each one is measured.

Every act is one that the reference values do not allow, by content: the files differ
from allowed ones by a byte at the end, which neither kernel nor loader minds.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sealift.errors import UnavailableError
from sealift.lab.guest.layout import (
    BUNDLE,
    BUSYBOX,
    LIBRARY,
    MODULE,
    PYTHON,
    UNLISTED,
    UNLISTED_LIBRARY,
)
from sealift.lab.guest.protocol import Act

_TIMEOUT_S: Final = 30


def misbehave(act: Act) -> str:
    """Do it, and return the path that the measurement list must show.

    Raises:
        UnavailableError: ``guest-act`` if the kernel did not let it.
    """
    return _ACTS[act]()


def shut_down() -> None:
    """Switch the guest off; its kernel tells the TPM."""
    _run(BUSYBOX, "poweroff", "-f")


def _run_unlisted() -> str:
    _alter(BUSYBOX, UNLISTED)
    _run(UNLISTED, "true")
    return UNLISTED


def _change_bundle() -> str:
    path = Path(BUNDLE)
    with path.open("ab") as file:
        file.write(b"\n")
    path.read_bytes()
    return BUNDLE


def _preload() -> str:
    _alter(LIBRARY, UNLISTED_LIBRARY)
    _run(PYTHON, "-I", "-S", "-c", "", preload=UNLISTED_LIBRARY)
    return UNLISTED_LIBRARY


def _insert_module() -> str:
    _run(BUSYBOX, "insmod", MODULE)
    return MODULE


_ACTS: Final[dict[Act, Callable[[], str]]] = {
    "exec": _run_unlisted,
    "bundle": _change_bundle,
    "preload": _preload,
    "module": _insert_module,
}


def _alter(source: str, target: str) -> None:
    Path(target).write_bytes(Path(source).read_bytes() + b"\n")
    Path(target).chmod(0o755)


def _run(*command: str, preload: str = "") -> None:
    environment = {**os.environ, "LD_PRELOAD": preload} if preload else None
    done = subprocess.run(  # noqa: S603 - to be caught at it
        command, env=environment, timeout=_TIMEOUT_S, capture_output=True, check=False
    )
    if done.returncode:
        raise UnavailableError(
            "the guest could not misbehave",
            why=done.stderr.decode(errors="replace")[-300:],
            code="guest-act",
        )
