"""Which of the states that were measured is handed out, and when training ends before its time.

Both follow from one held-out number, as the output rule lets it out: every slice knows it, and
so decides alike. The state to hand out goes on with a checkpoint.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Final

from sealift.errors import JobError, MalformedError
from sealift.train.loop.held import Content, part_of, read_of
from sealift.train.loop.states import (
    MODEL,
    Settled,
    TrainingState,
    chain_tensors,
    join_state,
    parse_tensors,
    split_state,
)
from sealift.travel.settings import TrainingSettings

_HEAD: Final = struct.Struct(">dQQ")  # the best value, its epoch, measures since
# What is best where it is lowest: an error, whatever label stands before it; and what asks for it.
_LOWEST: Final = re.compile(r"-.*|(.*_)?(loss|rmse|mae|auc_error|calibration_error)")


class BestState:
    """The best state so far.

    Args:
        settings: Of training; without ``measure`` nothing is chosen.

    Attributes:
        epoch: After which it was measured; -1 before the first.
    """

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        self._forget()

    def _forget(self) -> None:
        self._value, self._since, self.epoch = 0.0, 0, -1
        self._keep(None)

    def _keep(self, state: TrainingState | None) -> None:
        self._state = state
        self._settled = None if state is None else Settled(state)

    @property
    def state(self) -> TrainingState | None:
        """To be handed out, as it was kept; None while the last one is.

        Raises:
            JobError: code ``state-changed``.
        """
        if self._state is not None and self._settled is not None:
            self._settled.verify(self._state)
        return self._state

    def take(
        self, epoch: int, measured: Mapping[str, float], state: TrainingState
    ) -> bool:
        """Look at an evaluation; whether it is the best so far.

        Args:
            epoch: That ended before.
            measured: Means over everybody's held-out rows.
            state: That was measured.

        Raises:
            JobError: ``measure-missing``.
        """
        named = self._settings.measure
        name = named.removeprefix("-")
        if name not in measured:
            raise JobError(
                f"no held-out rows were measured by {name}",
                why=f"there are: {', '.join(sorted(measured)) or 'none'}",
                code="measure-missing",
            )
        value = -measured[name] if _LOWEST.fullmatch(named) else measured[name]
        if self.epoch >= 0 and value <= self._value:
            self._since += 1
            return False
        self._value, self._since, self.epoch = value, 0, epoch
        if self._settings.keep == "best":  # what trains on is not handed out
            own = parse_tensors(state.tensors)
            model = {n: each for n, each in own.items() if n.startswith(MODEL)}
            self._keep(TrainingState(state.step, chain_tensors(model), b""))
        return True

    @property
    def is_over(self) -> bool:
        """Whether training ends: as many evaluations in turn brought nothing better."""
        return 0 < self._settings.stop_after <= self._since

    def to_bytes(self) -> Content:
        """For a checkpoint; nothing before the first evaluation.

        Raises:
            JobError: code ``state-changed``.
        """
        if self.epoch < 0:
            return b""
        head = _HEAD.pack(self._value, self.epoch, self._since)
        if (state := self.state) is None:
            return head
        joined = join_state(state)
        return head + read_of(joined, 0, len(joined))

    def restore(self, raw: Content) -> None:
        """Go on from what ``to_bytes`` made, whatever was before.

        Raises:
            MalformedError: ``bad-tensors``, if it is something else.
        """
        self._forget()
        if not len(raw):
            return
        if len(raw) < _HEAD.size:
            raise MalformedError("the bytes are no choice", code="bad-tensors")
        self._value, self.epoch, self._since = _HEAD.unpack(read_of(raw, 0, _HEAD.size))
        rest = part_of(raw, _HEAD.size, len(raw) - _HEAD.size)
        self._keep(split_state(rest) if len(rest) else None)
