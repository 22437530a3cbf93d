"""Each module of the bundle that runs is measured first, once, by the parent.

The worker only says which path it is about to run; the digest is of the parent's own
bytes, those that the agreement names. So a recipe that has taken its process over can
leave a module out of the log, but not bring one in that the parties did not sign.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from sealift.attest.evidence import Measure
from sealift.attest.runtimelog import module_event
from sealift.errors import MalformedError
from sealift.ids import Digest


class ModuleLog:
    """The modules that ran so far.

    Args:
        files: The bundle, measured against the agreement.
        measure: Gets the event of each module before it runs.
    """

    def __init__(self, files: Mapping[str, bytes], measure: Measure) -> None:
        self._files = files
        self._measure = measure
        self._noted: set[str] = set()
        self._lock = threading.Lock()

    def note(self, path: str) -> None:
        """Measure a module, unless it was.

        Raises:
            MalformedError: if the bundle has no such module.
        """
        if path not in self._files or not path.endswith(".py"):
            raise MalformedError("no module of the bundle", code="bad-message")
        with self._lock:
            if path not in self._noted:
                self._measure(module_event(path, Digest.of(self._files[path])))
                self._noted.add(path)
