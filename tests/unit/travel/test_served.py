"""What a holder served is counted on the disk: nobody's restart begins the count anew."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.codec import decode, encode
from sealift.errors import MalformedError, PolicyError, UnavailableError
from sealift.travel.holder.visit import ServedVisits
from sealift.travel.visit.lease import Lease
from tests.unit.travel.leases import LEASE
from tests.worlds.consortium import RUN

TAKE = """
import os, sys
from pathlib import Path
from sealift.codec import decode
from sealift.travel.visit.lease import Lease
from sealift.travel.holder.visit import ServedVisits
served = ServedVisits(Path(sys.argv[1]))
served.take("line", decode(Lease, bytes.fromhex(sys.argv[2])), 3)
os._exit(9)  # killed, as soon as rows may leave
"""


def refused(served: ServedVisits, lease: Lease, most: int) -> None:
    with pytest.raises(PolicyError) as refusal:
        served.take("line", lease, most)
    assert refusal.value.code == "too-many-visits"


@pytest.mark.distributed
def test_it_survives_the_holders_restart(tmp_path: Path) -> None:
    path = tmp_path / "visits.db"
    lease = encode(LEASE).hex()
    assert decode(Lease, bytes.fromhex(lease)) == LEASE
    for _ in range(3):
        words = [sys.executable, "-c", TAKE, str(path), lease]
        assert subprocess.run(words, check=False, env=os.environ).returncode == 9
    refused(ServedVisits(path), LEASE, 3)


def test_without_the_file_the_count_begins_anew(tmp_path: Path) -> None:
    """What a count in a process is worth: the positive control."""
    for restart in range(5):
        ServedVisits(tmp_path / f"{restart}.db").take("line", LEASE, 1)


def test_ranges_of_a_purpose_are_counted_together(tmp_path: Path) -> None:
    served = ServedVisits(tmp_path / "visits.db")
    served.take("line", LEASE, 2)
    served.take("line", replace(LEASE, first_row=10), 2)
    refused(served, replace(LEASE, resource="ada-more", first_row=20), 2)
    served.take("line", replace(LEASE, purpose="heldout"), 2)
    served.take("line", replace(LEASE, purpose="prepare"), 2)
    refused(served, LEASE, 2)
    # Whoever starts jobs chooses their names and settings: those count together, too.
    refused(served, replace(LEASE, job="another"), 2)
    refused(served, replace(LEASE, run=replace(RUN, job="another", seed=9)), 2)
    served.take("other-line", LEASE, 2)


def test_a_refused_visit_is_not_counted(tmp_path: Path) -> None:
    served = ServedVisits(tmp_path / "visits.db")
    served.take("line", LEASE, 1)
    for _ in range(3):
        refused(served, LEASE, 1)
    served.take("line", LEASE, 2)


def test_a_file_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "visits.db").write_bytes(b"not a count" * 100)
    with pytest.raises((MalformedError, UnavailableError)):
        ServedVisits(tmp_path / "visits.db").take("line", LEASE, 1)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        ServedVisits(tmp_path / "gone" / "visits.db")
