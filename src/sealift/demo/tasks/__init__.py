"""What the demo's parties learn together, one file per task, by the name that people type."""

from __future__ import annotations

from typing import Final

from sealift.demo.tasks.digits import DIGITS
from sealift.demo.tasks.task import Task
from sealift.demo.tasks.text import TEXT

TASKS: Final[dict[str, Task]] = {task.name: task for task in (DIGITS, TEXT)}
