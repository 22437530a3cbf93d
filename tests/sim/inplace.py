"""Tasks in this process: for tests and rehearsals, never for a party's rows.

The same function as in the sandbox, so that both give the same bits.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeVar

from sealift.train.loop.tasks import (
    SliceTask,
    StepForm,
    TaskDone,
    TaskInputs,
    TaskParent,
)
from sealift.train.sandboxed.carryout import carry_out
from sealift.train.sandboxed.imports import Guard
from sealift.train.sandboxed.placement import HERE, DevicePlacement
from sealift.train.sandboxed.recipe import Containment
from sealift.travel.settings import TrainingSettings

T = TypeVar("T")
_IMPORTING: Final = threading.Lock()
"""A process has one recipe; ranks that are threads import theirs one after another."""


class InPlace:
    """A workplace without walls.

    Args:
        files: The code bundle.
        entry: Path of the recipe inside it.
        guard: Runs the recipe's code; by default nothing it says leaves.
        placement: Where it computes.
    """

    sandbox = "none"

    def __init__(
        self,
        files: Mapping[str, bytes],
        entry: str,
        *,
        guard: Guard | None = None,
        placement: DevicePlacement = HERE,
    ) -> None:
        self._placement = placement
        self._files, self._entry = files, entry
        self._guard = guard or Containment(files)

    def demand_time(self) -> None:
        """There is always time."""

    @property
    def on_gpu(self) -> bool:
        return False

    def stand_by(self, settings: TrainingSettings, forms: Sequence[StepForm]) -> None:
        """There is no process."""

    def do(self, task: SliceTask, given: TaskInputs, parent: TaskParent) -> TaskDone:
        """Do one task; see ``Workplace``."""
        with ExitStack() as importing:

            def guard(call: Callable[..., T], /, *parts: Any) -> T:
                found = self._guard(call, *parts)
                if call is importlib.import_module:
                    importing.close()
                return found

            importing.enter_context(_IMPORTING)
            return carry_out(
                task,
                given,
                self._files,
                self._entry,
                guard=guard,
                parent=parent,
                placement=self._placement,
            )
