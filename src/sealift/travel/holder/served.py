"""What a holder served, counted where a restart forgets nothing (rules N5, H8).

The accelerator counts as well, but its count begins anew with its process, and the
orchestrator may end that. A visit is counted, synced, before its first frame leaves:
what came to nothing afterwards counts too.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from sealift.errors import PolicyError, UsageError
from sealift.release.database import create_database, open_database, transaction
from sealift.travel.visit.lease import Lease

SERVED_NAME: Final = "served.db"  # beside the heads that the holder keeps
_APPLICATION: Final = 0x5345_4C56
_SCHEMA: Final = """
CREATE TABLE served (
  agreement BLOB, job TEXT, resource TEXT, purpose TEXT, first_row INTEGER, rows INTEGER,
  visits INTEGER NOT NULL,
  PRIMARY KEY (agreement, job, resource, purpose, first_row, rows)
) STRICT, WITHOUT ROWID
"""
_COUNT: Final = """
SELECT coalesce(sum(visits), 0) FROM served WHERE agreement = ? AND job = ? AND purpose = ?
"""
_TAKE: Final = """
INSERT INTO served VALUES (?, ?, ?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET visits = visits + 1
"""


class ServedVisits:
    """The visits that this holder served, by agreement, job, resource and range.

    Args:
        path: A file of several processes; made if it is not there.

    Raises:
        UnavailableError: if it cannot be written: no row is sent then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with suppress(UsageError):  # it is there, or another process makes it
            create_database(path, _SCHEMA, _APPLICATION).close()

    def take(self, lease: Lease, most: int) -> None:
        """Count a visit, on the disk, before any of its rows leaves.

        Args:
            lease: Of the visit.
            most: ``max_visits`` of the agreement; sums, training and held-out rows are
                counted apart.

        Raises:
            PolicyError: ``too-many-visits``.
            UnavailableError: if it cannot be written.
        """
        job = (lease.agreement.raw, lease.job)
        with (
            closing(open_database(self._path, _APPLICATION)) as found,
            transaction(found, self._path),
        ):
            (served,) = found.execute(_COUNT, (*job, lease.purpose)).fetchone()
            if served >= most:
                raise PolicyError(
                    f"{served} visits were served, and the agreement allows {most}",
                    why="also those count that a restarted job asked for once more",
                    code="too-many-visits",
                )
            rows = (lease.first_row, lease.shape[0])
            found.execute(_TAKE, (*job, lease.resource, lease.purpose, *rows))
