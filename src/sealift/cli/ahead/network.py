"""Whether the relay can be reached, and whether its clock is like this machine's."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import Final

from sealift.cli.ahead.dryrun import Unknown
from sealift.errors import PeerError, UnavailableError
from sealift.release.agreement.explain import say_time
from sealift.session.relay.client import RelayClient
from sealift.session.relay.proxy import RelayTransport, dial_relay, proxy_for

DIAL_S: Final = 5.0
MAX_APART_S: Final = 300.0  # as Kerberos allows (RFC 4120, 8.2)


@dataclass(slots=True)
class Network:
    """The way to the relay, and what was heard there.

    Attributes:
        address: Of the relay.
        told_s: What time somebody said it was, in seconds since 1970.
        teller: Who said it.
    """

    address: tuple[str, int]
    told_s: float | None = None
    teller: str = ""

    def reach(self) -> str:
        """Dial once; what answers.

        Raises:
            SealiftError: as ``dial_relay`` and ``RelayClient``.
        """
        host, port = self.address
        place = f"{host}:{port}"
        if not port:
            return Unknown("the job names no port; add --orchestrator HOST:PORT")
        try:
            transport = dial_relay(self.address, timeout_s=DIAL_S)
        except PeerError as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                return Unknown(
                    f"the machine at {place} answers, but nothing listens there yet"
                )
            if error.code == "peer-unreachable" and proxy_for(host, os.environ):
                return Unknown(f"{error.what}: {error.why}, or nothing listens yet")
            raise
        through = (
            f", through the proxy {transport.proxy.place}" if transport.proxy else ""
        )
        self._hear(transport)
        return f"a relay answers at {place}{through}"

    def _hear(self, transport: RelayTransport) -> None:
        if transport.date_s is not None:
            self.told_s, self.teller = transport.date_s, "the proxy"
        name = f"check-{secrets.token_hex(8)}"
        try:
            with RelayClient(transport, name, DIAL_S) as client:
                if client.clock_s is not None:
                    self.told_s, self.teller = client.clock_s, "the relay's machine"
        except PeerError as error:
            if error.code != "relay-full":  # it answered, and that was the question
                raise

    def compare_clocks(self, now_s: float) -> str:
        """This machine's with the one that was heard.

        Raises:
            UnavailableError: ``clock-off``.
        """
        if self.told_s is None:
            return Unknown(
                f"not compared; on this machine it is {say_time(int(now_s))}"
            )
        apart_s = now_s - self.told_s
        if abs(apart_s) <= MAX_APART_S:
            return f"{abs(apart_s):.0f} s apart from {self.teller}"
        way = "ahead of" if apart_s > 0 else "behind"
        raise UnavailableError(
            f"this machine's clock is {abs(apart_s) / 60:.0f} minutes {way} that of {self.teller}",
            code="clock-off",
        )
