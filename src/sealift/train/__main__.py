"""``torchrun ... -m sealift.train JOB``: a rank of the plan ``ddp`` that torchrun starts.

Its number comes from ``RANK``, or where rows stay at home from its identity; everything
else that `sealift accelerator` takes comes from ``SEALIFT_KEY`` and the like
(``rolesetup``). A rank that fails ends with its line and exit code, and so do the others:
torchrun starts all of them again, which go on from rank 0's checkpoint with fresh keys.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from sealift.errors import (
    SealiftError,
    Stopping,
    UsageError,
    for_screen,
    visible,
)
from sealift.session.direct import PathDialler
from sealift.train.job.directpaths import open_direct_host
from sealift.train.job.hostattester import EvidencePlaces, open_attester
from sealift.train.job.rejoin import Rejoining
from sealift.train.job.rolesetup import boot_clock, given, set_up_rank
from sealift.train.job.settings import parse_address
from sealift.train.job.talk import open_events
from sealift.train.ranks.rank import open_rank, torchrun_rank
from sealift.train.sandbox.confine import Confinement
from sealift.travel.visit.memory import overwrite_live_pools, restart_overwriting

TORCHRUN_RESTARTS: Final = 0.0  # a rank does not dial again: all begin again together


def main() -> int:
    """Run the rank that the environment describes; its exit code."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        job_file = _job_file(sys.argv[1:])
        restart_overwriting("sealift.train")
        told = _run(job_file)
    except SealiftError as error:
        _say(f"{error} [{error.code}]")
        return error.exit_code
    except Stopping:  # by torchrun, which has lost another rank and says so
        overwrite_live_pools()
        return 128 + signal.SIGTERM
    sys.stdout.write(f"{json.dumps(told)}\n")
    return 0


def _job_file(words: list[str]) -> Path:
    if len(words) != 1 or words[0].startswith("-"):
        raise UsageError(
            "a rank takes exactly one argument, the job's folder",
            fix="Start it with: torchrun --nproc-per-node N -m sealift.train JOB",
        )
    return Path(words[0])


def _run(job_file: Path) -> dict[str, int]:
    """Train beside the others until the job has ended.

    Raises:
        SealiftError: whatever ended it.
    """
    said = given(os.environ)
    setup = set_up_rank(
        os.environ,
        "accelerator",
        clock=time.time,  # noqa: TID251 - no command line is above
        sink=open_events(said.get("events", "")),
        job_file=job_file,
    )
    rank = torchrun_rank(setup, os.environ)
    home, name = setup.folder, setup.job.name
    first = setup.job.training.checkpoints_of(name)
    relay_only, places = "relay_only" in said, said.get("dial", "").split()
    for place in places:
        parse_address(place)
    with (
        open_direct_host(
            relay_only=relay_only,
            direct=said.get("direct"),
            listen=said.get("direct_listen"),
            sink=setup.sink,
        ) as direct_host,
        open_rank(
            setup,
            rank,
            open_attester(setup, EvidencePlaces.read(said)),
            sealed=_paths(said, "sealed") or [home],
            receipts=Path(said.get("receipts", home / "receipts" / name)),
            state=Path(said.get("state", home / "state" / first)),
            direct_host=direct_host,
            dialler=PathDialler(local=not relay_only, places=places),
            clock=boot_clock,
            must_resume=False,
            tell=lambda sandbox: _say(Confinement.parse(sandbox).say()),
        ) as process,
    ):
        rejoining = Rejoining(TORCHRUN_RESTARTS, sink=setup.sink)
        rejoining.run(lambda joined: process.serve(rejoining.dial_s, joined))
        return {"rank": rank, "receipts": process.places.receipts.kept}


def _paths(said: Mapping[str, str], name: str) -> list[Path]:
    return [Path(each) for each in said.get(name, "").split(os.pathsep) if each]


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopping


def _say(line: str) -> None:
    shown = for_screen(f"sealift: {visible(line)}", sys.stderr)
    sys.stderr.write(f"{shown}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
