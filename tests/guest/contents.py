"""What goes into the guest's initramfs, and which of it may be executed.

The archive is written so that equal trees are equal bytes. Python modules are compiled by
the guest's own interpreter and carried without sources: reading sources under software
emulation would take longer than booting.
Source: Linux, Documentation/driver-api/early-userspace/buffer-format.rst (newc).
"""

from __future__ import annotations

import io
import shutil
import stat
import subprocess
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import sealift
from sealift.errors import UnavailableError
from sealift.ids import Digest
from tests.guest.agent import (
    BUNDLE,
    BUSYBOX,
    CODE,
    LIBRARIES,
    LOADER,
    MODULE,
    PACKED_BUNDLE,
    PYTHON,
)

_MAGIC: Final = b"070701"
_END: Final = "TRAILER!!!"
FOLDER_MODE: Final = stat.S_IFDIR | 0o755


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or folder.

    Attributes:
        path: Without a leading slash.
        mode: Type and permissions, as in ``st_mode``.
        content: Empty for a folder.
    """

    path: str
    mode: int
    content: bytes = b""


def file_entry(path: str, content: bytes, *, executable: bool = False) -> Entry:
    """A regular file that everybody may read."""
    return Entry(path, stat.S_IFREG | (0o755 if executable else 0o644), content)


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive of ``entries`` and the folders above them, owned by root, at time 0."""
    chosen = {each.path: each for each in entries}
    folders = {str(up) for path in chosen for up in PurePosixPath(path).parents}
    for folder in folders - {"."} - chosen.keys():
        chosen[folder] = Entry(folder, FOLDER_MODE)
    ordered = [chosen[path] for path in sorted(chosen)]
    parts = [_member(each, number) for number, each in enumerate(ordered, 1)]
    return b"".join((*parts, _member(Entry(_END, 0), 0)))


def _member(entry: Entry, number: int) -> bytes:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    numbers = (
        *(number, entry.mode, 0, 0, links, 0, len(entry.content)),
        *(0, 0, 0, 0, len(name), 0),
    )
    header = _MAGIC + b"".join(b"%08x" % each for each in numbers) + name
    return _padded(header) + _padded(entry.content)


def _padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 4)


_TIMEOUT_S: Final = 600


def unpack(packages: Path, root: Path) -> None:
    """Unpack every package of ``packages`` under ``root``.

    Raises:
        UnavailableError: ``guest-build``.
    """
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for package in sorted(packages.glob("*.deb")):
        _run_tool("dpkg-deb", "--extract", str(package), str(root))
    for wheel in sorted(packages.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(inside(root, CODE))
    compile_python(root, *_python_folders(root), strip=root)


def _python_folders(root: Path) -> tuple[Path, Path]:
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
    _run_tool(
        *(str(inside(root, LOADER)), "--library-path", str(inside(root, LIBRARIES))),
        *(str(inside(root, PYTHON)), "-I", "-S", "-m", "compileall", "-q", "-b"),
        *("--invalidation-mode", "unchecked-hash", "-x", "/(test|lib2to3)/"),
        *("-s", str(strip), "-p", "/", *map(str, folders)),
        home=root / "usr",
    )


def _run_tool(*command: str, home: Path | None = None) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"}
    if home is not None:
        environment["PYTHONHOME"] = str(home)
    run_program(command, build_failed, env=environment)


def run_program(
    command: Sequence[str], failed: Callable[[str], UnavailableError], **options: Any
) -> str:
    """Run one program of the build; what it said.

    Raises:
        UnavailableError: ``failed`` of the end of what it said.
    """
    try:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            command, check=False, capture_output=True, timeout=_TIMEOUT_S, **options
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise failed(str(error)) from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace")
        raise failed(said.strip()[-400:])
    return done.stdout.decode(errors="replace")


def build_failed(why: str) -> UnavailableError:
    """The error of a build that cannot go on."""
    return UnavailableError(
        "the guest's image cannot be built", why=why, code="guest-build"
    )


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
AGENT: Final = "tests.guest.agent"  # its name in the guest, too


def system_entries(root: Path) -> Iterator[Entry]:
    """Programs, libraries, the standard library, the wheels and one kernel module."""
    for path in (BUSYBOX, PYTHON, LOADER):
        yield _copy(path, inside(root, path), executable=True)
    for path in (f"{LIBRARIES}/{name}" for name in _LIBRARIES):
        yield _copy(path, _library(root, path), executable=True)
    stdlib, packages = _python_folders(root)
    for each in _python_files(stdlib):
        yield _copy(f"/{each.relative_to(root)}", each)
    for each in _python_files(packages):
        yield _copy(f"/{each.relative_to(root)}", each)
    modules = inside(root, "/lib/modules")
    yield _copy(MODULE, find_file(modules, f"**/{Path(MODULE).name}"))
    init = (Path(__file__).parent / "assets/init").read_bytes()
    yield file_entry("init", init, executable=True)
    yield file_entry(PACKED_BUNDLE.lstrip("/"), _sample_bundle())


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
    rooms = [each for room in _OUR_ROOMS for each in (top / room).rglob("*.py")]
    chosen = [
        *(top / name for name in _OURS),
        *rooms,
    ]
    found = {str(each.relative_to(top.parent)): each.read_bytes() for each in chosen}
    agent = (Path(__file__).parent / "agent.py").read_bytes()
    return {
        **found,
        AGENT.replace(".", "/") + ".py": agent,
        **{f"{top.name}/{name}": b"" for name in _BARE},
    }


def compiled_entries(folder: Path) -> Iterator[Entry]:
    """Our own modules, as compiled in ``folder``."""
    for each in sorted(folder.rglob("*.pyc")):
        yield _copy(f"{CODE}/{each.relative_to(folder)}", each)


def _sample_bundle() -> bytes:
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
    return {**allowed, BUNDLE: Digest.of(_sample_bundle())}


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
