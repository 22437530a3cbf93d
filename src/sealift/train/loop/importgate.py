"""Which modules a recipe may import beside its bundle: those installed on this machine.

What a host measured at boot, or IMA measures, are Python's own library and its installed
packages. A module from anywhere else (a file that a recipe wrote, a folder that somebody
put into ``sys.path``) is refused by name. The gate is for recipes that mean no harm: one
that runs text it made itself imports nothing. No torch here.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Final

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
                    raise ForeignImportError(f"{fullname} is not installed here")
                return spec
        return None

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


def installed_places() -> tuple[str, ...]:
    """Folders of Python's library, of installed packages, and of those in use."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found.update(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        found.add(site.getusersitepackages())
    for name, module in list(sys.modules.items()):
        if "." not in name:
            found.update(getattr(module, "__path__", ()))
    named = {os.path.abspath(each) for each in found}
    return tuple(sorted(named | {os.path.realpath(each) for each in named}))
