"""Processes that train with torch's DDP over a sealed group."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from itertools import combinations
from typing import Any

from sealift.channel.transport.memfd import MemfdTransport
from sealift.collective.group import SealedGroup
from sealift.lab.bench.channel import pipe_over
from sealift.lab.bench.harness import pack

Work = Callable[[int], Any]


def on_ranks(world: int, work: Work) -> list[Any]:
    """What ``work(rank)`` returns in a process of each rank of a process group."""
    context = multiprocessing.get_context("spawn")
    socks: list[dict[int, socket.socket]] = [{} for _ in range(world)]
    for one, two in combinations(range(world), 2):
        socks[one][two], socks[two][one] = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    answers = context.Queue()
    children = [
        context.Process(target=_rank, args=(rank, socks[rank], port, work, answers))
        for rank in range(world)
    ]
    for child in children:
        child.start()
    for each in (sock for ends in socks for sock in ends.values()):
        each.close()  # the children have theirs
    found = dict(answers.get(timeout=300) for _ in children)
    for child in children:
        child.join()
    return [found[rank] for rank in range(world)]


def _rank(
    rank: int, socks: dict[int, socket.socket], port: int, work: Work, answers: Any
) -> None:
    import torch
    import torch.distributed as dist

    from sealift.integrations.torchgroup import SealedProcessGroup

    def make(store: Any, number: int, size: int, timeout: Any) -> SealedProcessGroup:
        wires = {}
        for peer, sock in sorted(socks.items()):
            lower = rank < peer
            carrier = (MemfdTransport.offer if lower else MemfdTransport.accept)(sock)
            wires[peer] = pipe_over(carrier, pack(b"k" * 32), opens=lower)
        return SealedProcessGroup(SealedGroup(number, wires))

    torch.set_num_threads(1)
    dist.Backend.register_backend("sealed-test", make, devices=["cpu"])
    dist.init_process_group(
        "sealed-test",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=len(socks) + 1,
    )
    try:
        answers.put((rank, work(rank)))
    finally:
        dist.destroy_process_group()
