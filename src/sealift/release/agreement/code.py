"""The code bundle: a folder of source files that the agreement names by digest.

Files are read once and stay in memory, so the measured bytes are the bytes that run.
Symbolic links and special files are refused; ``__pycache__`` is left out. An owner who
approves code sees every file, whether it was added, removed or changed, and a diff. A
``job.toml`` beside the code is no part of it: settings are agreed on by themselves.

Below ``assets/`` lie weights and texts of any size. Their digests stand beside the code's;
their bytes are read in pieces, once, by who uses them, and compared as they are read.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sealift.errors import IntegrityError, MalformedError, unreadable, visible
from sealift.ids import Digest
from sealift.release.agreement import CodeBundle, bundle_digest
from sealift.release.agreement.phrases import count

MAX_FILES: Final = 4096
MAX_BUNDLE_BYTES: Final = 64 << 20
JOB_NAME: Final = (
    "job.toml"  # beside a recipe: settings, which are agreed on by themselves
)
SKIPPED_FOLDERS: Final = frozenset({"__pycache__"})
NO_LINE_END: Final = "\\ No newline at end of file"
ASSETS: Final = "assets/"
ASSET_KINDS: Final = (
    ".safetensors",
    ".json",
    ".txt",
)  # nothing that would be unpickled
PIECE_BYTES: Final = 1 << 20
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Asset:
    """A file below ``assets/``.

    Attributes:
        name: Its path in the bundle.
        path: Where it lies.
        size: In bytes.
        digest: That was agreed on.
    """

    name: str
    path: Path
    size: int
    digest: Digest

    def pieces(self) -> Iterator[bytes]:
        """Its bytes, as many as ``size``, compared with the digest at the end.

        Raises:
            IntegrityError: ``code-bundle-differs``; then no piece of it may be used.
            UnavailableError: it cannot be read.
        """
        left, hasher = self.size, hashlib.sha256()
        try:
            with self.path.open("rb") as file:
                while left and (piece := file.read(min(left, PIECE_BYTES))):
                    hasher.update(piece)
                    left -= len(piece)
                    yield piece
                more = file.read(1)
        except OSError as error:
            raise unreadable(self.path, error) from None
        if left or more or hasher.digest() != self.digest.raw:
            raise _differs(self.name)


def find_assets(folder: Path) -> dict[str, Path]:
    """The files below ``assets/``, by their path in the bundle.

    Raises:
        UnavailableError: if the folder cannot be read.
        MalformedError: ``bad-asset``, for a kind of file that is not allowed; as
            ``read_bundle``.
    """
    try:
        found = {n: path for path, n in _walk(folder) if n.startswith(ASSETS)}
    except OSError as error:
        raise unreadable(folder, error) from None
    for name in found:
        require_asset(name)
    return dict(sorted(found.items()))


def require_asset(name: str) -> None:
    """Refuse a kind of file that somebody might unpickle, or run; raises ``bad-asset``."""
    if not name.endswith(ASSET_KINDS):
        raise MalformedError(
            f"{visible(name)[:200]} cannot be an asset of a recipe",
            why=f"assets end in {', '.join(ASSET_KINDS)}: files of other kinds could run code",
            fix="Save weights with safetensors, and other data as JSON or text",
            code="bad-asset",
        )


def measure_assets(folder: Path) -> dict[str, Digest]:
    """Their digests; each file is read in pieces.

    Raises:
        SealiftError: as ``find_assets``.
    """
    return {name: digest_of(path) for name, path in find_assets(folder).items()}


def digest_of(path: Path) -> Digest:
    """A file's, read in pieces; raises ``UnavailableError`` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return Digest(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise unreadable(path, error) from None


def load_assets(folder: Path, agreed: Mapping[str, Digest]) -> tuple[Asset, ...]:
    """The agreed assets, to be read and compared.

    Args:
        folder: Of the bundle.
        agreed: Digests of all its files, by path.

    Raises:
        IntegrityError: ``code-bundle-differs``: one is missing, or not agreed on.
        SealiftError: as ``find_assets``.
    """
    there = find_assets(folder)
    wanted = {name for name in agreed if name.startswith(ASSETS)}
    for name in sorted(there.keys() ^ wanted):
        raise _differs(name)
    return tuple(
        Asset(name, path, path.stat().st_size, agreed[name])
        for name, path in there.items()
    )


def read_bundle(folder: Path) -> dict[str, bytes]:
    """The bytes of every file but the assets by its path in the bundle, in their order.

    Raises:
        UnavailableError: if the folder cannot be read.
        MalformedError: for a link, a special file, an odd name, or too much of it.
    """
    files: dict[str, bytes] = {}
    left_bytes = MAX_BUNDLE_BYTES
    try:
        for path, name in sorted(_walk(folder), key=lambda entry: entry[1]):
            if name.startswith(ASSETS):
                continue
            files[name] = _read(path, name, left_bytes)
            left_bytes -= len(files[name])
    except OSError as error:
        raise unreadable(folder, error) from None
    if not files or len(files) > MAX_FILES:
        raise _bad(str(folder), f"a code bundle must have 1 to {MAX_FILES} files")
    return files


def measure_bundle(
    files: Files, entry: str, assets: Mapping[str, Digest] | None = None
) -> CodeBundle:
    """The digests of these files and assets, in the form that an agreement has them."""
    digests = {name: Digest.of(content) for name, content in files.items()}
    digests |= assets or {}
    return CodeBundle(bundle_digest(digests), entry, digests)


def load_bundle(folder: Path, agreed: CodeBundle) -> dict[str, bytes]:
    """Read a bundle and return its files if they are the agreed ones.

    Assets are compared by who reads them (``load_assets``).

    Raises:
        IntegrityError: ``code-bundle-differs``, naming the first file that differs.
    """
    files = read_bundle(folder)
    digests = {name: Digest.of(content) for name, content in files.items()}
    code = {n: each for n, each in agreed.files.items() if not n.startswith(ASSETS)}
    differing = differing_files(code, digests)
    if differing:
        raise _differs(differing[0])
    return files


def differing_files(
    before: Mapping[str, Digest], after: Mapping[str, Digest]
) -> list[str]:
    """Paths that were added, removed or changed, sorted."""
    return sorted(
        name for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    )  # fmt: skip


def diff_bundles(before: Files, after: Files) -> Iterator[str]:
    """The unified diff of two bundles by line, safe for a terminal."""
    for name in sorted(before.keys() | after.keys()):
        left, right = before.get(name), after.get(name)
        if left != right:
            yield from _diff(name, left, right)


def _diff(name: str, before: bytes | None, after: bytes | None) -> Iterator[str]:
    left, right = _lines(before), _lines(after)
    if left is None or right is None:
        yield f"binary file {visible(name)} changed"
        return
    labels = (
        "/dev/null" if before is None else f"a/{name}",
        "/dev/null" if after is None else f"b/{name}",
    )
    for line in difflib.unified_diff(left, right, *labels, lineterm=""):
        yield from map(visible, line.split("\n"))


def _lines(content: bytes | None) -> list[str] | None:
    """Lines without their ends; None if it is not text."""
    try:
        lines = (content or b"").decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    if lines[-1]:
        lines[-1] += f"\n{NO_LINE_END}"
    else:
        lines.pop()
    return lines


def _walk(folder: Path) -> Iterator[tuple[Path, str]]:
    for root, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
        for name in (*folders, *names):
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise _bad(relative, "links and special files are not allowed")
            if visible(relative) != relative or not relative.isascii():
                raise _bad(visible(relative), "file names must be printable ASCII")
            if name in names and relative != JOB_NAME:
                yield path, relative


def _read(path: Path, name: str, limit_bytes: int) -> bytes:
    with path.open("rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise _bad(name, f"a code bundle may have at most {MAX_BUNDLE_BYTES:,} bytes")
    return content


def _differs(name: str) -> IntegrityError:
    return IntegrityError(
        "the code differs from the agreed code",
        why=f"{visible(name)} differs",
        code="code-bundle-differs",
    )


def _raise(error: OSError) -> None:
    raise error


def _bad(name: str, why: str) -> MalformedError:
    return MalformedError(
        f"the code bundle cannot be used because of {name}", why=why, code="bad-bundle"
    )


def review_code(
    agreed: CodeBundle,
    *,
    before: CodeBundle | None,
    files: Files | None,
    files_before: Files | None,
) -> Iterator[str]:
    """The list of files and how each changed, then the diff if the bytes are available.

    Args:
        agreed: The bundle of the agreement.
        before: The bundle of its predecessor, if it has one.
        files: The bundle's bytes, checked against ``agreed``.
        files_before: The predecessor's bytes, checked against ``before``.
    """
    yield f"bundle {agreed.digest}, {count(len(agreed.files), 'file')}, entry {agreed.entry}"
    yield from _fates(agreed, before)
    if files is None:
        yield "no diff: name the code folder with --bundle"
    elif before is not None and files_before is None:
        yield "no diff: name the predecessor's code folder with --predecessor-bundle"
    else:
        yield from diff_bundles(files_before or {}, files)


def _fates(agreed: CodeBundle, before: CodeBundle | None) -> Iterator[str]:
    earlier = before.files if before else {}
    for name in sorted(agreed.files.keys() | earlier.keys()):
        after, prior = agreed.files.get(name), earlier.get(name)
        digest = after or prior
        fate = "removed" if after is None else "added" if prior is None else "changed"
        fate = "unchanged" if after == prior else fate
        yield f"  {fate:<9}  {digest.short if digest else ''}  {visible(name)}"
