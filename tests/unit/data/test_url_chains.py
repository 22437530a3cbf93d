"""Chains of places: a cache in front would read a server's answer to its end."""

from __future__ import annotations

import pytest

from sealift.data.urls import open_place
from sealift.errors import UnavailableError, UsageError

BELOW = "http://127.0.0.1:1/a.sealed"


@pytest.mark.parametrize("place", ["blockcache::{}", "simplecache::{}", "zip://a::{}"])
def test_a_chain_of_places_is_refused(place: str) -> None:
    with pytest.raises(UsageError, match="a chain of file systems"):
        open_place(place.format(BELOW))


def test_an_address_in_brackets_is_no_chain() -> None:
    """Control: what is refused here is refused by whoever was asked."""
    with pytest.raises(UnavailableError, match="cannot read"):
        open_place("http://[::1]:1/a.sealed").state()
