"""Servers as an outsourced model reaches them, in this process."""

from __future__ import annotations

from collections.abc import Callable

from sealift.outsource.module.server import Products
from sealift.outsource.plain import PlainProducts
from sealift.outsource.trace import Traces


class Reached:
    """Products here, exact ones or masked ones; or servers that fail."""

    def __init__(self, make: Callable[[], Products] = PlainProducts) -> None:
        self.make, self.opened, self.closed = make, [], False

    def open(self, traces: Traces) -> Products:
        self.opened.append(traces)
        return self.make()

    def close(self) -> None:
        self.closed = True
