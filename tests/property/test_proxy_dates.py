"""Whatever stands in a proxy's `Date`: a look ahead has its time, or none, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sealift.cli.ahead.looks import Network
from sealift.errors import UnavailableError
from sealift.session.relay.server import Relay
from tests.sim.proxies import FAR, OPEN, LittleProxy, little_proxy

numbers = st.one_of(
    st.integers(-1, 99).map("{:02d}".format), st.integers(0, 10**40).map(str)
)
days = st.sampled_from(["Mon", "Sunday", "", "lun.", "\t"])
months = st.sampled_from(["Jan", "FEB", "Dec", "13", "Mai", ""])
zones = st.sampled_from(
    ["GMT", "UTC", "", "-0000", "+9999", "-99999999999999999", "EST", "Z", "(x"]
)
clocks = st.lists(numbers, min_size=0, max_size=4).map(":".join)
dates = st.tuples(days, st.just(", "), numbers, months, numbers, clocks, zones).map(
    lambda parts: parts[0] + parts[1] + " ".join(parts[2:])
)
texts = st.one_of(
    dates,
    st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=80),
)


@pytest.fixture(scope="module")
def proxy() -> Iterator[LittleProxy]:
    with (
        Relay.listen() as silent,
        little_proxy(silent.address) as found,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in found.environment().items():
            patch.setenv(name, value)
        yield found


@given(texts)
@example("Mon, 01 Jan 0001 00:00:00 -9999")
@example("Tue, 31 Feb 2026 10:00:00 GMT")
@example("Fri, 31 Dec 9999 23:59:59 GMT")
@example("Mon, 99999999999999999999 Jan 2026 10:00:00 GMT")
def test_no_date_ends_a_look_ahead(proxy: LittleProxy, date: str) -> None:
    proxy.answer = OPEN + b"Date: " + date.encode("latin-1") + b"\r\n\r\n"
    network = Network(FAR)
    assert "a relay answers" in network.reach()
    with suppress(UnavailableError):
        assert network.compare_clocks(1.8e9)
