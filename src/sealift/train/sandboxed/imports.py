"""What a recipe imports: its bundle's modules from measured bytes, and what is installed.

What runs is what was hashed, never a file from the disk, also for an import that a
recipe makes late, inside a function. One bundle at a time belongs to a process; loading
another one replaces it. A bundle may not bring a module that hides one of Python's or of
an installed package that is in use: whose code runs under a name must not depend on who
asks first.

What a host measured at boot, or IMA measures, are Python's own library and its installed
packages. A module from anywhere else (a file that a recipe wrote, a folder that somebody
put into ``sys.path``) is refused by name. That gate is for recipes that mean no harm: one
that runs text it made itself imports nothing. No torch here.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from sealift.errors import MalformedError

BUNDLE_SCHEME: Final = "bundle:"
# Calls its first argument with the others; errors and prints are its business.
Guard = Callable[..., Any]
_IN_PYTHON: Final[tuple[object, ...]] = (
    importlib.machinery.BuiltinImporter,
    importlib.machinery.FrozenImporter,
)


class ForeignImportError(ImportError):
    """A module is neither in the bundle nor installed on this machine."""


class ImportGate(importlib.abc.MetaPathFinder):
    """Finds what the other finders find, where it lies in one of some folders.

    Args:
        places: Absolute paths of folders whose modules may be imported.
        finders: The finders that look for them; by default those in use.
    """

    def __init__(
        self,
        places: Iterable[str],
        finders: Sequence[importlib.abc.MetaPathFinder] | None = None,
    ) -> None:
        self._places = tuple(f"{os.path.normpath(each)}/" for each in places)
        self._finders = list(sys.meta_path if finders is None else finders)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's place, or None if there is none of that name.

        Raises:
            ForeignImportError: if it lies elsewhere.
        """
        for finder in self._finders:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if not self._allows(spec):
                    raise ForeignImportError(
                        f"{fullname} is not installed on the accelerator"
                    )
                return spec
        return None

    def find_distributions(
        self, context: DistributionFinder.Context
    ) -> Iterator[Distribution]:
        """What is written of packages in these folders: many ask for a version as they load."""
        for finder in self._finders:
            find = getattr(finder, "find_distributions", _none)
            yield from (e for e in find(context) if self._holds(str(e.locate_file(""))))

    def invalidate_caches(self) -> None:
        """Tell the finders."""
        for finder in self._finders:
            getattr(finder, "invalidate_caches", _nothing)()

    def _allows(self, spec: importlib.machinery.ModuleSpec) -> bool:
        if spec.loader in _IN_PYTHON:
            return True
        found = list(spec.submodule_search_locations or ())
        if spec.origin is not None:
            found.append(spec.origin)
        return bool(found) and all(map(self._holds, found))

    def _holds(self, path: str) -> bool:
        inside = os.path.normpath(path) + "/"
        return any(inside.startswith(place) for place in self._places)


def close_gate(places: Iterable[str], *, bytecode: str) -> None:
    """From now on this process imports from these folders alone.

    Args:
        places: See ``ImportGate``.
        bytecode: A private folder, empty: what lies compiled beside a module's source
            is not used.
    """
    sys.pycache_prefix = bytecode
    sys.meta_path[:] = [ImportGate(places)]


def _nothing() -> None:
    """For finders that keep nothing."""


def _none(context: object) -> tuple[()]:
    """For finders that know no packages."""
    return ()


Files = Mapping[str, bytes]
Notice = Callable[[str], None]
"""Told the path of each module of the bundle before its code runs."""


def unnoticed(path: str) -> None:
    """For a process that measures nothing."""


def import_entry(
    files: Files, entry: str, guard: Guard, notice: Notice = unnoticed
) -> ModuleType:
    """Import the bundle's entry file.

    Args:
        files: Relative path -> source bytes, already measured.
        entry: Path of the file to import.
        guard: Runs the modules' code.
        notice: Told of each module before it runs.

    Raises:
        MalformedError: if the entry is not in the bundle, or a module of the bundle
            hides another one.
        JobError: if the code does not load.
    """
    if entry not in files or not entry.endswith(".py"):
        raise MalformedError(
            f"entry {entry!r} is not in the code bundle", code="bad-entry"
        )
    _forget_former_bundle()
    _refuse_hiding(files)
    _leave_working_folder()
    sys.meta_path.insert(0, BundleFinder(files, notice))
    module: ModuleType = guard(importlib.import_module, _module_name(entry))
    return module


class BundleFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads the modules of one bundle.

    Args:
        files: The bundle.
        notice: Told of each module before it runs.

    Attributes:
        found: Names of the modules that were found in it.
    """

    def __init__(self, files: Files, notice: Notice = unnoticed) -> None:
        self._files = files
        self._notice = notice
        self.found: set[str] = set()

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's place in the bundle, if it has one."""
        found = _path_of(fullname, self._files)
        if found is not None:
            self.found.add(fullname)
            origin, package = BUNDLE_SCHEME + found, found.endswith("/__init__.py")
            return importlib.util.spec_from_loader(
                fullname, self, origin=origin, is_package=package
            )
        if fullname.replace(".", "/") in _folders(self._files):
            self.found.add(fullname)
            return importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        return None

    def get_source(self, fullname: str) -> str:
        """The module's text; tracebacks of ``sealift try`` quote it."""
        return importlib.util.decode_source(self._files[self._path(fullname)])

    def get_code(self, fullname: str) -> CodeType:
        """The module, compiled under its name in the bundle."""
        path = self._path(fullname)
        self._notice(path)
        code: CodeType = compile(
            self._files[path], BUNDLE_SCHEME + path, "exec", dont_inherit=True
        )
        return code

    def _path(self, fullname: str) -> str:
        found = _path_of(fullname, self._files)
        if found is None:
            raise ImportError(fullname)
        return found


def _forget_former_bundle() -> None:
    """By the names that were found: to look at every module there is takes 20 ms."""
    former = [each for each in sys.meta_path if isinstance(each, BundleFinder)]
    for finder in former:
        sys.meta_path.remove(finder)
        for name in finder.found:
            sys.modules.pop(name, None)


def _refuse_hiding(files: Files) -> None:
    for path in files:
        top = path.split("/", 1)[0].removesuffix(".py")
        python = path.endswith(".py")
        if python and (top in sys.stdlib_module_names or top in sys.modules):
            raise MalformedError(
                f"the code bundle's {path} has the name of the installed module {top}",
                code="bundle-hides-module",
            )


def _leave_working_folder() -> None:
    """`python -m` looks for modules where it was started: not for a recipe's."""
    here = str(Path.cwd())
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _path_of(module: str, files: Files) -> str | None:
    stem = module.replace(".", "/")
    paths = (f"{stem}/__init__.py", f"{stem}.py")
    return next((path for path in paths if path in files), None)


def _folders(files: Files) -> frozenset[str]:
    """Folders that hold modules, at any depth: packages without ``__init__.py``."""
    parts = [path.split("/")[:-1] for path in files if path.endswith(".py")]
    return frozenset(
        "/".join(names[:depth]) for names in parts for depth in range(1, len(names) + 1)
    )
