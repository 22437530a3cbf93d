"""Fetches what the guest is made of, from Debian's and Python's registries.

Once fetched, packages are kept: building the image again needs no network. A file with
their digests (``packages.json``) says which versions the image is made of.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from sealift import codec
from sealift.errors import UnavailableError
from sealift.ids import Digest
from sealift.lab.guest.layout import PYTHON_VERSION

_KERNEL: Final = "linux-image-cloud-amd64"  # depends on the newest one
_DEBIAN: Final = (
    "busybox-static",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    f"libpython{PYTHON_VERSION}-minimal",
    f"libpython{PYTHON_VERSION}-stdlib",
    "ovmf",
    f"python{PYTHON_VERSION}-minimal",
    "zlib1g",
)
_WHEELS: Final = ("blake3", "cffi", "cryptography", "rfc8785")
_PLATFORMS: Final = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17")
_LOCK: Final = "packages.json"
_TIMEOUT_S: Final = 600


@dataclass(frozen=True, slots=True)
class PackageLock:
    """Digests of every package, by file name."""

    packages: dict[str, Digest]


def fetched(folder: Path) -> PackageLock | None:
    """What lies in ``folder``, or None if it was not fetched whole."""
    path = folder / _LOCK
    if not path.exists():
        return None
    lock = codec.decode(PackageLock, path.read_bytes())
    return lock if all((folder / name).exists() for name in lock.packages) else None


def fetch(folder: Path) -> PackageLock:
    """Fetch every package into ``folder``, in place of what is there.

    Raises:
        UnavailableError: ``guest-packages`` if one cannot be had.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = (_newest_kernel(), *_DEBIAN)
    _run(folder, "apt-get", "-q", "download", *(f"{each}:amd64" for each in names))
    _run(folder, *_pip_download())
    files = sorted(each for each in folder.iterdir() if each.is_file())
    lock = PackageLock({each.name: Digest.of(each.read_bytes()) for each in files})
    (folder / _LOCK).write_bytes(codec.encode(lock))
    return lock


def _newest_kernel() -> str:
    shown = _run(Path.cwd(), "apt-cache", "depends", "--important", _KERNEL)
    words = [line.split()[-1] for line in shown.splitlines() if "Depends:" in line]
    kernels = [word for word in words if word.startswith("linux-image-")]
    if not kernels:
        raise _unavailable(f"apt knows no {_KERNEL}")
    return kernels[0]


def _pip_download() -> list[str]:
    platforms = (f"--platform={each}_x86_64" for each in _PLATFORMS)
    pins = (f"{each}=={version(each)}" for each in _WHEELS)
    return [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
        *("--disable-pip-version-check", "--only-binary=:all:", "--dest=."),
        *(f"--python-version={PYTHON_VERSION}", "--implementation=cp"),
        *(f"--abi=cp{PYTHON_VERSION.replace('.', '')}", "--abi=abi3", "--abi=none"),
        *platforms,
        *pins,
    ]


def _run(folder: Path, *command: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed programs and names
            command,
            check=False,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unavailable(str(error)) from None
    if done.returncode:
        raise _unavailable(done.stderr.strip()[-400:])
    return done.stdout


def _unavailable(why: str) -> UnavailableError:
    return UnavailableError(
        "the guest's packages cannot be fetched", why=why, code="guest-packages"
    )
