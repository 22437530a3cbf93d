"""``sealift share-server``: computes on one of three secret shares."""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from sealift.channel.transport.tcp import TcpListener
from sealift.cli.console import say, unlock
from sealift.cli.judging import equip_from
from sealift.cli.roles import add_job_arguments
from sealift.codec import parse_toml
from sealift.crypto.identity import Identity
from sealift.errors import PolicyError, UnavailableError
from sealift.events import Sink, emit, unfailing, wall_clock
from sealift.health.reporting import report_until_exit
from sealift.ids import Role
from sealift.outsource.masked import SHARES, Share
from sealift.outsource.module.servers import Servers
from sealift.release.agreement.signed import load_verified
from sealift.release.files import read_whole
from sealift.session.endpoint import Endpoint, PeerPolicy
from sealift.train.job.rolesetup import own_enroller
from sealift.train.job.settings import (
    MAX_JOB_BYTES,
    check_servers,
    parse_address,
    read_job,
)
from sealift.train.job.talk import open_events
from sealift.travel.peers import accelerator_names, expect_accelerator

Terms = tuple[Endpoint, PeerPolicy, str]  # who we are, whom we serve, and where


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "share-server",
        run=run,
        description="Listens at the address in the job's [servers]. Computes products for one "
        "accelerator at a time that the agreement accepts, and authenticates with the key of "
        "the agreement's party. Instead of a job it takes a user's own servers.toml. It sees "
        "sizes and uniformly random numbers. SIGTERM ends it.",
    )
    parser.add_argument(
        "--share",
        required=True,
        choices=SHARES,
        help="which of the three shares it has",
    )
    add_job_arguments(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", help="default: as in JOB")
    parser.add_argument(
        "--device", default="cpu", choices=("cpu", "cuda"), help="device to use"
    )
    parser.add_status()
    parser.add_path(
        "--kernels",
        metavar="FOLDER",
        help="store compiled kernels here; kernels in it are executed",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit code is the signal's, or that of an error."""
    identity = unlock(args, args.key)
    own = "client" in parse_toml(
        read_whole(args.job, MAX_JOB_BYTES), source=str(args.job)
    )
    terms = (_of_own_process if own else _of_job)(args, identity)
    sink = report_until_exit(args.status, "share-server", open_events(args.events))
    sink = unfailing(sink)
    place = parse_address(args.listen or terms[2])
    with closing(TcpListener(*place)) as listener:
        _serve(args, terms, listener, sink)
    return 0


def _of_job(args: argparse.Namespace, identity: Identity) -> Terms:
    """Under a job's agreement: an accelerator comes, with evidence."""
    job = read_job(args.job)
    agreement = load_verified(Path(job.agreement))
    body, share = agreement.agreement, args.share
    body.require_time(wall_clock())
    check_servers(job.servers, body)
    body.require_own_key(identity.name, identity.public_key)
    parties = body.servers.parties if body.servers else {}
    if parties[share] != identity.name:
        raise PolicyError(
            f"{identity.name} is not the party of share {share}",
            why=f"in the agreement it is {parties[share]}",
            code="other-share",
        )
    agreement = equip_from(args, agreement, own_enroller(agreement, identity))
    endpoint = Endpoint(
        role=Role.SHARE_SERVER,
        name=identity.name,
        agreement=agreement.digest,
        identity=identity,
    )
    (name,) = accelerator_names()
    expect = expect_accelerator(agreement, name)
    return endpoint, expect, job.servers.addresses[_share(share)]


def _of_own_process(args: argparse.Namespace, identity: Identity) -> Terms:
    """Of a user's own process: it comes with the user's key."""
    servers, share = Servers.read(args.job), _share(args.share)
    endpoint = servers.endpoint(identity, share)
    return endpoint, servers.expect_client(), servers.addresses[share]


def _share(text: str) -> Share:
    return next(each for each in SHARES if each == text)


def _serve(
    args: argparse.Namespace, terms: Terms, listener: TcpListener, sink: Sink
) -> None:
    from sealift.numeric.kernels import best_kernels

    try:
        from sealift.outsource.compute import ShareProducts
        from sealift.outsource.server import ShareServer
    except RuntimeError as error:  # of its own library: without /dev/urandom, say
        raise UnavailableError(
            "torch cannot be loaded", why=error, code="no-torch"
        ) from None

    began_s = time.monotonic()
    kernels = best_kernels(args.kernels)
    ready_s = time.monotonic() - began_s
    products = ShareProducts(args.device, kernels)
    endpoint, expect, _place = terms
    server = ShareServer(
        args.share, endpoint, expect, products=products, kernels=kernels, sink=sink
    )
    host, port = listener.address
    say(f"{kernels.loops.name} kernels are ready after {ready_s:.1f} s")
    say(f"share {args.share}: {products.method} on {args.device}, at {host}:{port}")
    emit(sink, "shares.listening", share=args.share, address=f"{host}:{port}")
    server.serve(listener)
