"""``sealift health``: shows a role's metrics and health over HTTP, without its keys."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Final

from sealift.health.server import listen, require_own_folder, serve

PORT: Final = 9464  # of Prometheus exporters


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "health",
        description="Serves /metrics (Prometheus), /healthz and /readyz from the folder "
        "that `sealift broker --status FOLDER` writes, in a process that can read nothing "
        "else. Plain HTTP: put a proxy in front for TLS.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="the status folder of the role"
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen")
    parser.add_argument(
        "--port",
        type=int,
        choices=range(65536),
        default=PORT,
        metavar="PORT",
        help="0 chooses a free port",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    require_own_folder(args.folder)
    with listen(args.host, args.port) as listening:
        host, port = listening.getsockname()[:2]
        print(f"sealift: health on {host}:{port}", file=sys.stderr, flush=True)
        serve(args.folder, listening, time.time)  # noqa: TID251 - the one clock of this process
    return 0
