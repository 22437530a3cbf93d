"""Unpacks the guest's packages, and compiles what of it is Python.

Python modules are compiled by the guest's own interpreter and carried without sources:
reading sources under software emulation would take longer than booting.
"""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Final

from sealift.errors import UnavailableError
from sealift.lab.guest.layout import CODE, LIBRARIES, LOADER, PYTHON

_TIMEOUT_S: Final = 300


def unpack(packages: Path, root: Path) -> None:
    """Unpack every package of ``packages`` under ``root``.

    Raises:
        UnavailableError: ``guest-build``.
    """
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for package in sorted(packages.glob("*.deb")):
        run_tool("dpkg-deb", "--extract", str(package), str(root))
    for wheel in sorted(packages.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(inside(root, CODE))
    compile_python(root, *python_folders(root), strip=root)


def python_folders(root: Path) -> tuple[Path, Path]:
    """The standard library and the packages beside it."""
    version = Path(PYTHON).name
    return inside(root, f"/usr/lib/{version}"), inside(root, CODE)


def inside(root: Path, path: str) -> Path:
    """Where the guest's absolute ``path`` lies under ``root``."""
    return root / path.lstrip("/")


def compile_python(root: Path, *folders: Path, strip: Path) -> None:
    """Compile every module in ``folders``, beside its source, reproducibly.

    Args:
        root: Where the guest's interpreter was unpacked.
        folders: Searched through and through.
        strip: The part of their paths that the modules shall not know.

    Raises:
        UnavailableError: ``guest-build``.
    """
    run_tool(
        *(str(inside(root, LOADER)), "--library-path", str(inside(root, LIBRARIES))),
        *(str(inside(root, PYTHON)), "-I", "-S", "-m", "compileall", "-q", "-b"),
        *("--invalidation-mode", "unchecked-hash", "-x", "/(test|lib2to3)/"),
        *("-s", str(strip), "-p", "/", *map(str, folders)),
        home=root / "usr",
    )


def run_tool(*command: str, home: Path | None = None) -> None:
    """Run one program of the build.

    Raises:
        UnavailableError: ``guest-build`` with the end of what it said.
    """
    environment = {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"}
    if home is not None:
        environment["PYTHONHOME"] = str(home)
    try:
        done = subprocess.run(  # noqa: S603 - fixed programs
            command,
            check=False,
            env=environment,
            capture_output=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise build_failed(str(error)) from None
    if done.returncode:
        raise build_failed((done.stderr or done.stdout).decode(errors="replace")[-400:])


def build_failed(why: str) -> UnavailableError:
    """The error of a build that cannot go on."""
    return UnavailableError(
        "the guest's image cannot be built", why=why, code="guest-build"
    )
