"""What goes into the guest's initramfs, and which of it may be executed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

import sealift
from sealift.ids import Digest
from sealift.lab.guest.cpio import Entry, file_entry
from sealift.lab.guest.layout import (
    BUNDLE,
    BUSYBOX,
    CODE,
    LIBRARIES,
    LOADER,
    MODULE,
    PACKED_BUNDLE,
    PYTHON,
)
from sealift.lab.guest.unpack import inside, python_folders

_ELF: Final = b"\x7fELF"
_LIBRARIES: Final = (
    *("libc.so.6", "libdl.so.2", "libexpat.so.1", "libffi.so.8", "libgcc_s.so.1"),
    *("libm.so.6", "libpthread.so.0", "librt.so.1", "libz.so.1"),
)
# Large, and nothing inside imports it.
_WITHOUT: Final = {
    "cffi", "curses", "dbm", "distutils", "ensurepip", "idlelib", "lib2to3",
    "pydoc_data", "sqlite3", "test", "tkinter", "turtledemo", "unittest", "venv",
    "wsgiref", "xmlrpc", "doctest.pyc", "mailbox.pyc", "pydoc.pyc", "tarfile.pyc",
    "turtle.pyc",
}  # fmt: skip
# Of Python's extension modules, those that need no library but the ones above.
_EXTENSIONS: Final = (
    "_asyncio.", "_contextvars.", "_ctypes.", "_json.", "_multiprocessing.", "_queue.",
    "_typing.", "mmap.", "resource.", "termios.",
)  # fmt: skip
# The trust core, and of this room what runs inside.
_OURS: Final = ("errors.py", "events.py", "ids.py", "__init__.py")
_OUR_ROOMS: Final = ("attest", "codec", "crypto")
# A package that imports all of appraisal; the agent needs none, and importing under
# emulation is slow. Inside it is empty.
_BARE: Final = ("attest/__init__.py",)
_OUR_GUEST: Final = ("__init__.py", "acts.py", "agent.py", "layout.py", "protocol.py")


def system_entries(root: Path) -> Iterator[Entry]:
    """Programs, libraries, the standard library, the wheels and one kernel module."""
    for path in (BUSYBOX, PYTHON, LOADER):
        yield _copy(path, inside(root, path), executable=True)
    for path in (f"{LIBRARIES}/{name}" for name in _LIBRARIES):
        yield _copy(path, _library(root, path), executable=True)
    stdlib, packages = python_folders(root)
    for each in _python_files(stdlib):
        yield _copy(f"/{each.relative_to(root)}", each)
    for each in _python_files(packages):
        yield _copy(f"/{each.relative_to(root)}", each)
    modules = inside(root, "/lib/modules")
    yield _copy(MODULE, find_file(modules, f"**/{Path(MODULE).name}"))
    init = files(__package__).joinpath("assets/init").read_bytes()
    yield file_entry("init", init, executable=True)
    yield file_entry(PACKED_BUNDLE.lstrip("/"), sample_bundle())


def find_file(folder: Path, pattern: str) -> Path:
    """The one file of a package whose folder depends on its version.

    Raises:
        FileNotFoundError: if the package has none.
    """
    for each in sorted(folder.glob(pattern)):
        return each
    raise FileNotFoundError(f"no {pattern} in {folder}")


def own_sources() -> dict[str, bytes]:
    """Our own modules in the guest, by their path below ``CODE``."""
    top = Path(sealift.__file__).parent
    here = Path(__file__).parent
    rooms = [each for room in _OUR_ROOMS for each in (top / room).rglob("*.py")]
    chosen = [
        *(top / name for name in _OURS),
        *rooms,
        *(here / name for name in _OUR_GUEST),
        here.parent / "__init__.py",
    ]
    found = {str(each.relative_to(top.parent)): each.read_bytes() for each in chosen}
    return {**found, **{f"{top.name}/{name}": b"" for name in _BARE}}


def compiled_entries(folder: Path) -> Iterator[Entry]:
    """Our own modules, as compiled in ``folder``."""
    for each in sorted(folder.rglob("*.pyc")):
        yield _copy(f"{CODE}/{each.relative_to(folder)}", each)


def sample_bundle() -> bytes:
    """Stands for the code bundle of a job: one archive with one module."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        member = zipfile.ZipInfo("recipe.py", (1980, 1, 1, 0, 0, 0))
        archive.writestr(member, '"""What the parties agreed to run."""\n')
    return packed.getvalue()


def allowed_files(entries: Iterable[Entry]) -> dict[str, Digest]:
    """What the guest may execute, map or read as its bundle: digests by path."""
    allowed = {
        f"/{each.path}": Digest.of(each.content)
        for each in entries
        if each.content.startswith(_ELF) and f"/{each.path}" != MODULE
    }
    return {**allowed, BUNDLE: Digest.of(sample_bundle())}


def _python_files(folder: Path) -> list[Path]:
    return [each for each in sorted(folder.rglob("*")) if _is_wanted(each, folder)]


def _is_wanted(path: Path, folder: Path) -> bool:
    parts = path.relative_to(folder).parts
    if not path.is_file() or _WITHOUT.intersection(parts[:1]):
        return False
    if parts[0] == "lib-dynload":
        return path.name.startswith(_EXTENSIONS)
    return path.suffix in {".pyc", ".so"} and "__pycache__" not in parts


def _library(root: Path, path: str) -> Path:
    """Where a package put it: Debian 12 still has some below /lib, some below /usr."""
    here = inside(root, path)
    return here if here.exists() else inside(root, f"/usr{path}")


def _copy(path: str, source: Path, *, executable: bool = False) -> Entry:
    return file_entry(path.lstrip("/"), source.read_bytes(), executable=executable)
