"""Training settings as people write them: a value, a list or a range, turned into a rule.

Not a part of what a broker does: a document is read where it is written.
Source: spec/release.md section Training settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from sealift.codec import from_plain, to_plain
from sealift.errors import MalformedError
from sealift.release.agreement.training import (
    LIMITS,
    SETTINGS,
    Between,
    ParameterRule,
    TrainingRule,
)


def read_training(plain: object) -> object:
    """Plain form of the rule from what people write: a value, a list, or a range.

    Fields without default must be there; ``{ max = 9 }`` leaves the other end to what a
    job may write at all. What is none of these stays as it is, for the codec to refuse.

    Raises:
        MalformedError: ``bad-agreement``, with the field's path.
    """
    if not isinstance(plain, dict):
        return plain
    read = dict(plain)
    for each in fields(TrainingRule):
        if each.name in plain:
            read[each.name] = _read_field(each.name, plain[each.name])
        elif each.default is not MISSING:
            read[each.name] = to_plain(each.default)
        elif each.default_factory is not MISSING:
            read[each.name] = {}
    return read


def widen(rule: TrainingRule, written: Mapping[str, Any]) -> TrainingRule:
    """A rule that allows what people write beside a job: ranges, lists, and ``runs``.

    Raises:
        MalformedError: ``bad-agreement``, with the field's path; a range that leaves out
            what the rule allowed before.
    """
    plain = to_plain(rule)
    for name, each in written.items():
        read = _read_field(name, each) if name in plain and name != "plans" else each
        if name == "parameters" and isinstance(read, dict):
            read = plain[name] | read
        elif name in ("plans", "privacy", "keep_state"):
            raise MalformedError(
                f"{name} of a job cannot be a range",
                field=f"agreed.{name}",
                code="bad-agreement",
            )
        plain[name] = read
    wide: TrainingRule = from_plain(TrainingRule, plain, "agreed")
    for name, dotted in (*SETTINGS.items(), ("parameters", "parameters")):
        narrow = _leaves_out(getattr(wide, name), getattr(rule, name))
        if narrow is not None:
            raise MalformedError(
                f"[agreed] leaves out what the job sets: {dotted}{narrow}",
                field=f"agreed.{name}",
                code="bad-agreement",
            )
    return wide


def _leaves_out(wide: Any, one: Any) -> str | None:
    """What a field of a rule that allows one value has more than a wide one; None for nothing."""
    if isinstance(one, Between):
        return None if one.min in wide else f" = {one.min}"
    if isinstance(one, tuple):
        return None if set(one) <= set(wide) else f" = {one[0]}"
    for name in sorted(wide.keys() | one.keys()):
        if name not in one:
            return f" has no {name}"
        allowed: ParameterRule = one[name]
        value = allowed.between.min if allowed.between else allowed.values[0]
        if value not in wide[name]:
            return f".{name} = {allowed}"
    return None


def _read_field(name: str, written: Any) -> Any:
    if name == "privacy" and isinstance(written, Mapping):
        return {"honest_ranks": 0, **written}  # the one number that has a default
    if name in ("runs", "privacy", "privacy_trusts_code", "keep_state"):
        return written
    if name == "parameters" and isinstance(written, Mapping):
        return {each: _read_parameter(allowed) for each, allowed in written.items()}
    if name not in LIMITS:
        return written if isinstance(written, list) else [written]
    if isinstance(written, Mapping):
        low, high = LIMITS[name]
        return {"min": low, "max": high, **written}
    if isinstance(written, list):
        raise MalformedError(
            "expected a number or a range",
            fix="Write it like 8, or like { min = 1, max = 8 }",
            field=f"training.{name}",
        )
    return {"min": written, "max": written}


def _read_parameter(written: Any) -> Any:
    """A number, or ``{ min = 0.1, max = 1 }``; a text, true or false, or a list of these."""
    if isinstance(written, Mapping):
        return {"between": {**written}, "values": []}
    if isinstance(written, list | bool | str):
        listed = written if isinstance(written, list) else [written]
        return {"between": None, "values": listed}
    return {"between": {"min": written, "max": written}, "values": []}
