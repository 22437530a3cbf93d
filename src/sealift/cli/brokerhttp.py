"""``sealift broker --http``: the HTTP rim beside the broker's sessions, if it is asked for.

Nothing of the web framework is loaded without ``--http``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sealift.cli.buglog import record_bug
from sealift.cli.judging import wall_clock
from sealift.errors import UsageError
from sealift.release.brokerserver import Broker
from sealift.train.settings import parse_address

if TYPE_CHECKING:
    from sealift.service.metrics import Metrics

MAX_BUGS: Final = 16


def add_http_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the rim listens, and with what certificate."""
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve the KBS protocol, health and metrics here too (127.0.0.1:8080)",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="PEM chain")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key")


def make_metrics(args: argparse.Namespace) -> Metrics | None:
    """Counters, if there is somebody to show them to.

    Raises:
        UsageError: ``tls-unusable`` for half a certificate, or one without ``--http``.
    """
    if bool(args.tls_cert) is not bool(args.tls_key) or (
        args.tls_cert and not args.http
    ):
        raise UsageError(
            "--http, --tls-cert and --tls-key belong together",
            fix="Give both files with --http, or neither",
            code="tls-unusable",
        )
    if not args.http:
        return None
    from sealift.service.metrics import Metrics

    return Metrics()


@contextmanager
def http_rim(
    args: argparse.Namespace, broker: Broker, metrics: Metrics | None
) -> Iterator[None]:
    """The rim, for as long as it is open.

    Raises:
        UnavailableError: ``cannot-listen``, or ``extra-missing``.
        UsageError: ``bad-address``, or ``tls-unusable``.
    """
    if metrics is None:
        yield
        return
    from sealift.crypto.jwe import require_extra
    from sealift.service.app import make_application
    from sealift.service.limits import Limits
    from sealift.service.server import RimServer, TlsFiles, is_loopback

    require_extra()
    address = parse_address(args.http)
    limits = Limits()
    application = make_application(
        broker, metrics, limits=limits, clock=wall_clock, report_bug=first_bugs()
    )
    tls = TlsFiles(args.tls_cert, args.tls_key) if args.tls_cert else None
    with RimServer(application, address, limits=limits, tls=tls) as server:
        host, port = server.address
        _say(f"KBS protocol, health and metrics on {host}:{port}")
        if tls is None and not is_loopback(host):
            _say("without TLS others see who asks for what, and can pretend to be us")
        yield


def first_bugs() -> Callable[[Exception], None]:
    """Records bugs, so many at most: strangers must not fill the disk with them."""
    places = iter(range(MAX_BUGS))

    def report(error: Exception) -> None:
        if next(places, None) is not None:
            _say(record_bug(error))

    return report


def _say(line: str) -> None:
    print(f"sealift: {line}", file=sys.stderr, flush=True)
