"""Processes of one sealed group of torch.distributed, on this machine."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

from sealift.lab.worlds.folder import HOST
from tests.sim.jobworld import plain_world

Work = Callable[[int], Any]


def variables() -> dict[str, str]:
    """What a script's ranks learn from their environment."""
    world = plain_world()
    home = world.home(HOST)
    return {
        "SEALIFT_JOB": str(world.job),
        "SEALIFT_KEY": str(home.key),
        "SEALIFT_PASSPHRASE_FILE": str(home.passphrase),
        "OMP_NUM_THREADS": "1",
    }


def on_ranks(world: int, work: Work, *, killed: int = 0) -> list[Any]:
    """What ``work(rank)`` returns in a process of each rank of a process group.

    Args:
        world: How many.
        work: A function of a module.
        killed: How many of the last ranks end without an answer; all others end well.
    """
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    said = variables() | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    answers = context.Queue()
    children = [
        context.Process(target=_rank, args=(rank, world, said, work, answers))
        for rank in range(world)
    ]
    for child in children:
        child.start()
    left = children[: world - killed]
    found = dict(answers.get(timeout=300) for _ in left)
    for child in children:
        child.join()
    assert not any(child.exitcode for child in left)
    return [found[rank] for rank in range(len(left))]


def _rank(
    rank: int, world: int, said: dict[str, str], work: Work, answers: Any
) -> None:
    os.environ.update(said)
    import torch
    import torch.distributed as dist

    import sealift.integrations.process_group  # noqa: F401 - as scripts do

    torch.set_num_threads(1)
    dist.init_process_group("sealift", rank=rank, world_size=world)
    try:
        answers.put((rank, work(rank)))
    except BaseException as error:
        answers.put((rank, repr(error)))
        raise
    finally:
        dist.destroy_process_group()
