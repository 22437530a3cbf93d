"""Exit codes of the processes in here, which the parent tells apart."""

from __future__ import annotations

from typing import Final

NO_NAMESPACES: Final = 77
NOT_CONFINED: Final = 78
