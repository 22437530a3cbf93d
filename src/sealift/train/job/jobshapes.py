"""A job that goes on goes on in the shape in which it began (rule N5).

An orchestrator that restarts itself may not ask for another cut, other visits or another
order. A checkpoint is bound to the shape as well; this is for what has none yet.
"""

from __future__ import annotations

from sealift.data.schedule.visits import BufferChoice
from sealift.errors import PolicyError
from sealift.ids import Digest


class JobShapes:
    """What the jobs that this process began look like."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Digest, BufferChoice]] = {}

    def hold(self, job: str, shape: Digest, choice: BufferChoice) -> BufferChoice:
        """The buffer that the job began with; ``choice``, if it begins.

        Raises:
            PolicyError: ``other-shape``.
        """
        began, first = self._held.setdefault(job, (shape, choice))
        if shape != began:
            raise PolicyError(
                f"the job {job} began in another shape",
                why="cut, passes, order, batches and seed decide what its numbers tell",
                code="other-shape",
            )
        return first
