"""Builds the guest's image, when what it is made of has changed.

Packages are fetched from Debian's and Python's registries, once: building the image again
needs no network, and ``packages.json`` has the digests of what it is made of. An image
lies in a folder that is named by a digest of its inputs: the packages, our own modules
inside, and these builders. Equal inputs give equal bytes.

Its reference values: what may run, and the register of the initramfs, are known when it is
built. The other registers are collected from one boot of it that its owner watched: they
depend on QEMU's version too, which hands the kernel to the firmware.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from sealift import codec
from sealift.attest.evidence import Evidence
from sealift.attest.reference import (
    ImaReferences,
    Operator,
    TpmReferences,
    TpmRoot,
)
from sealift.attest.tpm.evidence import TpmBody
from sealift.crypto.certificate import Certificate
from sealift.crypto.hash import labelled, sha256
from sealift.errors import UnavailableError
from sealift.ids import Digest
from tests.guest.agent import (
    BUNDLE,
    BUSYBOX,
    COMMAND_LINE,
    PYTHON,
    PYTHON_VERSION,
)
from tests.guest.contents import (
    allowed_files,
    archive,
    build_failed,
    compile_python,
    compiled_entries,
    find_file,
    own_sources,
    run_program,
    system_entries,
    unpack,
)

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
    packages = (f"{each}:amd64" for each in names)
    fetching = ("apt-get", "-q", "download", *packages), _pip_download()
    for command in fetching:
        run_program(command, _unavailable, cwd=folder)
    files = sorted(each for each in folder.iterdir() if each.is_file())
    lock = PackageLock({each.name: Digest.of(each.read_bytes()) for each in files})
    (folder / _LOCK).write_bytes(codec.encode(lock))
    return lock


def _newest_kernel() -> str:
    asked = ("apt-cache", "depends", "--important", _KERNEL)
    shown = run_program(asked, _unavailable)
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


def _unavailable(why: str) -> UnavailableError:
    return UnavailableError(
        "the guest's packages cannot be fetched", why=why, code="guest-packages"
    )


_MANIFEST: Final = "manifest.json"
_UNPACKED: Final = "unpacked"
_FIRMWARE: Final = "usr/share/OVMF"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageManifest:
    """What an image is.

    Attributes:
        packages: Digests of the packages that it is made of, by file name.
        kernel: The kernel's release.
        initrd: SHA-256 of the initramfs.
        allowed: What may be executed, mapped, or read as the bundle: digests by path.
    """

    packages: dict[str, Digest]
    kernel: str
    initrd: Digest
    allowed: dict[str, Digest]


@dataclass(frozen=True, slots=True)
class GuestImage:
    """An image that was built."""

    folder: Path
    manifest: ImageManifest

    @property
    def kernel(self) -> Path:
        """The kernel, which is also an EFI program."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """Everything else that runs inside."""
        return self.folder / "initrd"

    @property
    def firmware(self) -> Path:
        """OVMF's code."""
        return self.folder / "OVMF_CODE.fd"

    @property
    def variables(self) -> Path:
        """OVMF's variables as they are at first; each guest gets a copy."""
        return self.folder / "OVMF_VARS.fd"


def guest_folder() -> Path:
    """Where packages and images are kept: ``SEALIFT_GUEST``, or the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("SEALIFT_GUEST") or f"{cache}/sealift/guest")


def find_image(folder: Path) -> Path | None:
    """Where the image lies that ``build_image`` would return, or None."""
    lock = fetched(folder / "packages")
    image = folder / f"image-{_key(lock)}" if lock else None
    return image if image and (image / _MANIFEST).exists() else None


def build_image(folder: Path, *, fresh: bool = False) -> GuestImage:
    """The image in ``folder``; built if it is missing or made of something else.

    Args:
        folder: Keeps packages and images.
        fresh: Fetch the newest packages first.

    Raises:
        UnavailableError: ``guest-packages`` or ``guest-build``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        lock = None if fresh else fetched(folder / "packages")
        lock = lock or fetch(folder / "packages")
        image = folder / f"image-{_key(lock)}"
        if not (image / _MANIFEST).exists():
            root = _unpacked(folder, lock)
            _build(image, root, lock)
            _forget_others(folder, image, root)
        manifest = codec.decode(ImageManifest, (image / _MANIFEST).read_bytes())
    return GuestImage(image, manifest)


def _key(lock: PackageLock) -> str:
    here = sorted(each for each in Path(__file__).parent.rglob("*") if each.is_file())
    builders = [each.read_bytes() for each in here if each.suffix != ".pyc"]
    ours = [
        part for name, raw in own_sources().items() for part in (name.encode(), raw)
    ]
    return labelled("guest image", codec.encode(lock), *builders, *ours).hex()[:16]


def _unpacked(folder: Path, lock: PackageLock) -> Path:
    root = folder / f"root-{labelled('guest root', codec.encode(lock)).hex()[:16]}"
    if not (root / _UNPACKED).exists():
        unpack(folder / "packages", root)
        (root / _UNPACKED).touch()
    return root


def _build(image: Path, root: Path, lock: PackageLock) -> None:
    with tempfile.TemporaryDirectory(dir=image.parent) as fresh:
        draft = Path(fresh) / "image"
        draft.mkdir()
        try:
            _fill(draft, root, lock)
        except OSError as error:
            raise build_failed(str(error)) from None
        shutil.rmtree(image, ignore_errors=True)
        draft.rename(image)


def _fill(draft: Path, root: Path, lock: PackageLock) -> None:
    kernel = find_file(root / "boot", "vmlinuz-*")
    shutil.copy(kernel, draft / "vmlinuz")
    for name in ("OVMF_CODE.fd", "OVMF_VARS.fd"):
        shutil.copy(root / _FIRMWARE / name, draft / name)
    system = list(system_entries(root))
    initrd = _packed(archive(system)) + _packed(_compile_ours(root))
    (draft / "initrd").write_bytes(initrd)
    manifest = ImageManifest(
        packages=lock.packages,
        kernel=kernel.name.removeprefix("vmlinuz-"),
        initrd=Digest.of(initrd),
        allowed=allowed_files(system),
    )
    (draft / _MANIFEST).write_bytes(codec.encode(manifest))


def _packed(archived: bytes) -> bytes:
    # The fastest level: firmware and kernel read it in emulation, once each.
    return gzip.compress(archived, compresslevel=1, mtime=0)


def _compile_ours(root: Path) -> bytes:
    with tempfile.TemporaryDirectory() as sources:
        for name, raw in own_sources().items():
            path = Path(sources) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        compile_python(root, Path(sources), strip=Path(sources))
        return archive(compiled_entries(Path(sources)))


def _forget_others(folder: Path, *kept: Path) -> None:
    for each in (*folder.glob("image-*"), *folder.glob("root-*")):
        if each not in kept:
            shutil.rmtree(each, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# Firmware, its settings, the kernel, boot attempts, secure boot's keys; nothing
# extends 8 here, and that is worth knowing too.
WATCHED_PCRS: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8)
KERNEL_PCR: Final = 9  # what the kernel was given: command line and initramfs
ROOT_NAME: Final = "software TPM of this machine"


def _image_references(manifest: ImageManifest) -> ImaReferences:
    """What an image may execute, map, and read as its bundle; and what it must.

    The policy and the agent's code lie in the initramfs, which register 9 pins.
    """
    return ImaReferences(
        allow={k: (v,) for k, v in manifest.allowed.items()},
        must=(BUSYBOX, PYTHON, BUNDLE),
    )


def kernel_register(manifest: ImageManifest) -> bytes:
    """PCR 9 after a boot of that image, computed from the image alone.

    The EFI stub of the kernel measures its command line, to which OVMF adds the name of
    the initramfs, and then the initramfs.
    """
    command_line = f"{COMMAND_LINE} initrd=initrd\0".encode("utf-16-le")
    after_line = sha256(bytes(32), sha256(command_line))
    return sha256(after_line, manifest.initrd.raw)


def guest_references(
    manifest: ImageManifest,
    first: Evidence,
    root: Certificate,
    *,
    operator: Operator = "software",
) -> TpmReferences:
    """Reference values for the host that made ``first``, and for no other one.

    Args:
        manifest: Of the image that it booted.
        first: Evidence of a boot that its owner watched.
        root: Of whoever certified its TPM.
        operator: What ``root`` stands for; ``software`` is the truth of this guest.

    Raises:
        MalformedError: if ``first`` does not parse.
    """
    body = TpmBody.parse(first.body)
    values = body.registers()["sha256"]
    return TpmReferences(
        roots=(TpmRoot(name=ROOT_NAME, key=root.spki_digest, operator=operator),),
        endorsement_keys=(Certificate(body.certificates[0]).spki_digest,),
        pcrs={
            **{str(number): (values[number],) for number in WATCHED_PCRS},
            str(KERNEL_PCR): (kernel_register(manifest),),
        },
        ima=_image_references(manifest),
        revocation="none",  # a software TPM's maker revokes nothing
    )
