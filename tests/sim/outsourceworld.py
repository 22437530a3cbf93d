"""A job of the plan ``outsource``: three organisations more, and a process of each.

A server listens where the kernel lets it; the job learns the places before any other role
starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sealift.crypto.identity import create_identity, save_identity
from sealift.demo.folder import World
from sealift.outsource.masked import Share
from tests.sim.jobrun import JobRun
from tests.sim.jobworld import Wishes, fresh_world, write_job
from tests.sim.quickkernels import kept_kernels

PARTIES: dict[Share, str] = {"P": "cloud-a", "M": "cloud-b", "Z": "cloud-c"}
PASSPHRASE = "three organisations, one machine"
PORTABLE = ("tests.sim.portable",)
SERVERS = "\n[servers]\n" + "".join(f'{s} = "127.0.0.1:1"\n' for s in PARTIES)


def outsourced_world(folder: Path, wishes: Wishes) -> World:
    """A world whose job asks the servers of three more parties."""
    clouds = [create_identity(name) for name in PARTIES.values()]
    wishes = replace(wishes, plan="outsource", group=_agreed(), slices=SERVERS)
    world = fresh_world(folder, wishes, clouds)
    for each in clouds:
        home = world.home(each.name)
        home.path.mkdir()
        home.passphrase.write_text(PASSPHRASE)
        save_identity(each, home.key, PASSPHRASE)
    return world


def start_servers(
    run: JobRun, wishes: Wishes, other: Mapping[Share, tuple[str, ...]]
) -> None:
    """The three, as their organisations start them, until they listen; each by its share.

    Args:
        run: Ends them.
        wishes: Of the world's job.
        other: Modules, and their own words, in place of ``tests.sim.portable``.
    """
    for share, party in PARTIES.items():
        home = run.world.home(party)
        words = ["share-server", run.world.job, "--share", share, *home.unlocking]
        words += ["--listen", "127.0.0.1:0", "--events", "-"]
        words += ["--kernels", kept_kernels()]
        run.start(share, *words, module=other.get(share, PORTABLE))
    slices = SERVERS
    for share in PARTIES:
        found = run[share].wait_event("shares.listening").fields["address"]
        slices = slices.replace(f'{share} = "127.0.0.1:1"', f'{share} = "{found}"')
    write_job(run.world, replace(wishes, plan="outsource", slices=slices))


def _agreed() -> str:
    """What the agreement has besides: three parties, and whose share is whose."""
    cards = "".join(
        f'\n[[parties]]  # {name}\ncard = "{name}.card.json"\nroles = ["share_server"]\n'
        for name in PARTIES.values()
    )
    shares = "".join(f'{share} = "{name}"\n' for share, name in PARTIES.items())
    return f"{cards}\n[servers]\n{shares}"
