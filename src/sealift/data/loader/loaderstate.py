"""Where a loader stands, as a small dict of strings and numbers.

It says how many rows of which epoch were handed out, and what the order depends on;
neither workers nor batch size are part of that. Nothing in it is secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from sealift.errors import MalformedError, UsageError

STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LoaderState:
    """A position, and the order it is a position in.

    Attributes:
        epoch: From 0.
        position: Rows of this rank's epoch that were handed out.
        shards: Fingerprint of the shards, in their order.
        shuffle, seed, window_bytes, world_size, pad: See ``OrderOptions``.
    """

    epoch: int
    position: int
    shards: str
    shuffle: bool
    seed: int
    window_bytes: int
    world_size: int
    pad: bool

    def to_plain(self) -> dict[str, Any]:
        """The dict that ``parse_state`` reads."""
        return {"version": STATE_VERSION, **asdict(self)}

    def demand_same_order(self, current: LoaderState) -> None:
        """Demand that ``current`` counts in the same order.

        At the start of an epoch it may be another one: there is nothing to go on from.

        Raises:
            UsageError: code ``loader-state``; names what differs.
        """
        counted = ("shards", "shuffle", "seed", "window_bytes", "world_size", "pad")
        for name in counted if self.position else ("shards",):
            saved, here = getattr(self, name), getattr(current, name)
            if saved != here:
                raise UsageError(
                    "the state is of another loader",
                    why=f"its {name} was {saved}, here it is {here}",
                    code="loader-state",
                )


def parse_state(plain: object) -> LoaderState:
    """Read what ``to_plain`` made.

    Raises:
        MalformedError: code ``bad-loader-state``; names the key.
    """
    known = {field.name: field.type for field in fields(LoaderState)}
    if not isinstance(plain, Mapping) or plain.get("version") != STATE_VERSION:
        raise _bad("version", "it is not a loader's state of version 1")
    for name in plain.keys() - known.keys() - {"version"}:
        raise _bad(str(name), "unknown key")
    for name, kind in known.items():
        if type(plain.get(name)).__name__ != kind:
            raise _bad(name, f"it is not {kind}")
    state = LoaderState(**{name: plain[name] for name in known})
    if state.epoch < 0 or state.position < 0:
        raise _bad("position", "it is negative")
    return state


def _bad(name: str, why: str) -> MalformedError:
    return MalformedError(
        "this is not the state of a sealed loader",
        field=name,
        why=why,
        code="bad-loader-state",
    )
