"""Where a shard lies: a path, or a URL of any kind that fsspec opens.

Paths and ``file://`` are read by ``pread``; everything else through fsspec (extra
``urls``), one request per record. Bytes arrive as ``bytes`` objects, which nobody else
can change (rule H3). What a server says is not believed: records are verified. Over HTTP
an answer is read as far as was asked and no further (``boundedhttp``); what a package of
another scheme keeps in memory of an answer that is too long is that package's.
"""

from __future__ import annotations

import glob
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from sealift.channel.record.rawfile import ByteSource, FileSource
from sealift.errors import UnavailableError, UsageError

_VERSION_KEYS: Final = ("ETag", "etag", "mtime", "LastModified", "last_modified")
_LITERAL: Final = re.compile(r"\[[0-9A-Fa-f:.]*\]")  # an IPv6 address
_WILD: Final = frozenset("*[")  # "?" begins a query

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")

StorageOptions = Mapping[str, Any]


class UrlSource:
    """A file behind a URL.

    Args:
        url: What fsspec understands.
        options: For fsspec's file system: credentials, endpoints, timeouts.

    Raises:
        UnavailableError: if fsspec or the package of its scheme is missing, or the
            file cannot be read.
    """

    def __init__(self, url: str, options: StorageOptions | None = None) -> None:
        self._url = url
        self._files, self._path = _file_system(url, options or {})

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return name_of(self._url)

    def state(self) -> tuple[int, str]:
        """Size, and an entity tag or time where the server tells one."""
        try:
            facts = self._files.info(self._path)
        except Exception as error:  # every scheme has errors of its own
            raise _unreadable(self._url, error) from error
        size = facts.get("size")
        if not isinstance(size, int):
            raise _unreadable(self._url, "the server does not report the file's length")
        version = next((facts[key] for key in _VERSION_KEYS if facts.get(key)), "")
        return size, str(version)

    def read_into(self, offset: int, out: memoryview) -> int:
        """See ``ByteSource``."""
        end = offset + len(out)
        try:
            part = self._files.cat_file(self._path, start=offset, end=end)
        except Exception as error:
            raise _unreadable(self._url, error) from error
        if len(part) != len(out):
            raise _unreadable(self._url, "the server sent another range than requested")
        out[:] = part
        return len(part)

    def close(self) -> None:
        """Nothing is held open between requests."""


def open_place(place: str, options: StorageOptions | None = None) -> ByteSource:
    """Open a path or a URL.

    Raises:
        UnavailableError: if it cannot be read, or a package is missing.
    """
    path = local_path(place)
    return FileSource(path) if path else UrlSource(place, options)


def read_place(place: str, max_bytes: int, options: StorageOptions | None) -> bytes:
    """All of a small file.

    Raises:
        UnavailableError: if it cannot be read.
        UsageError: if it is larger than ``max_bytes``.
    """
    source = open_place(place, options)
    try:
        size_bytes, _ = source.state()
        if size_bytes > max_bytes:
            raise UsageError(
                f"{name_of(place)} is too large: it has {size_bytes:,} bytes"
            )
        content = bytearray(size_bytes)
        view, filled = memoryview(content), 0
        while count := source.read_into(filled, view[filled:]) if view[filled:] else 0:
            filled += count
        return bytes(view[:filled])
    finally:
        source.close()


def exists(place: str, options: StorageOptions | None) -> bool:
    """Whether there is a file; False also where nobody can tell."""
    path = local_path(place)
    if path:
        return path.is_file()
    files, inside = _file_system(place, options or {})
    try:
        return bool(files.isfile(inside))
    except Exception:
        return False


def expand(place: str, options: StorageOptions | None = None) -> list[str]:
    """The places that a pattern (``*``, ``[]``) names, sorted; or the one.

    Raises:
        UnavailableError: if a pattern names none.
    """
    if not _WILD.intersection(place) or exists(place, options):
        return [place]
    path = local_path(place)
    found = sorted(glob.glob(str(path))) if path else _remote_matches(place, options)
    if not found:
        raise UnavailableError(
            f"no file matches {place}",
            why="the pattern matches none",
            fix="Check the folder; names of shards end in .sealed",
            code="cannot-read",
        )
    return found


def local_path(place: str) -> Path | None:
    """The path, if the place is one on this machine."""
    if "://" not in place:
        return Path(place)
    parts = urlsplit(place)
    if parts.scheme != "file":
        return None
    return Path(unquote(parts.path))


def name_of(place: str) -> str:
    """The last part of a path or URL, without query."""
    return split_query(place)[0].rstrip("/").rpartition("/")[2] or place


def split_query(place: str) -> tuple[str, str]:
    """A place and its query with the ``?``; a path has none."""
    base, mark, query = place.partition("?") if "://" in place else (place, "", "")
    return base, mark + query


def _remote_matches(place: str, options: StorageOptions | None) -> list[str]:
    files, inside = _file_system(place, options or {})
    try:
        return sorted(files.unstrip_protocol(name) for name in files.glob(inside))
    except Exception as error:
        raise _unreadable(place, error) from error


def _file_system(url: str, options: StorageOptions) -> tuple[Any, str]:
    scheme = url.partition("://")[0]
    if "::" in _LITERAL.sub("", url):  # of what lies below nothing would be bounded
        raise UsageError(
            f"{scheme}:// is a chain of file systems",
            fix="Give the URL of the shard itself",
        )
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError:
        raise _missing(scheme, "pip install '.[urls]' in Sealift's folder") from None
    try:
        files, path = core.url_to_fs(url, **_bounded(scheme, options))
    except ImportError as error:
        raise _missing(scheme, f"pip install 'fsspec[{scheme}]'", error) from None
    except ValueError as error:
        raise UsageError(f"cannot read from {scheme}://: {_told(error)}") from None
    except Exception as error:
        raise _unreadable(url, error) from error
    return files, str(path)


def _bounded(scheme: str, options: StorageOptions) -> StorageOptions:
    """Options under which an answer over HTTP cannot be longer than what was asked."""
    if scheme not in ("http", "https"):
        return options
    response = importlib.import_module("sealift.data.boundedhttp").BoundedResponse
    client = {**options.get("client_kwargs", {}), "response_class": response}
    return {**options, "client_kwargs": client}


def _missing(
    scheme: str, command: str, error: ImportError | None = None
) -> UnavailableError:
    return UnavailableError(
        f"{scheme}:// needs a package that is not installed",
        why=str(error or "fsspec is missing"),
        fix=f"Run: {command}",
        code="extra-missing",
    )


def _unreadable(url: str, error: Exception | str) -> UnavailableError:
    return UnavailableError(
        f"cannot read {_without_secrets(url)}",
        why=_told(error) or type(error).__name__,
        fix="Check the URL, the network and the credentials",
        code="cannot-read",
    )


def _told(error: Exception | str) -> str:
    """What a library says, which may be the whole URL."""
    said: object = error
    if isinstance(error, FileNotFoundError):  # says no more than the URL
        said = error.__cause__ or "there is no such file"
    return _URL.sub(lambda found: _without_secrets(found[0]), str(said))


def _without_secrets(url: str) -> str:
    """A URL without its query (signatures stand there) and without a password."""
    bare = url.partition("?")[0]
    scheme, mark, rest = bare.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"
