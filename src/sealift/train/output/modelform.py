"""The form of a model: what it is asked, what its answers hold, and who may ask.

Its owner writes TOML; its plain form stands in the agreement, as the ``schema`` of the
model's resource, so that it changes with its owner's signature alone (rule H7). Answers
are named fields of fixed shapes; numbers are rounded, and nothing else leaves (rule H8).
Source: spec/serve.md section Form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sealift.codec import parse_toml
from sealift.crypto.identity import load_card
from sealift.crypto.sign import PublicKey
from sealift.data.schema.document import schema_from_plain, schema_to_plain
from sealift.data.schema.schema import Schema
from sealift.errors import MalformedError, PolicyError, nearest
from sealift.ids import check_name
from sealift.release.agreement import MAX_DIGITS, Resource
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.agreement.training import Parameter
from sealift.release.files import read_whole

FORMAT: Final = "sealift-model"
MAX_FORM_BYTES: Final = 1 << 20
MAX_ROWS: Final = 1 << 16
MAX_STEPS: Final = 1 << 16
MAX_CLIENTS: Final = 4096
_KEYS: Final = frozenset({
    "format", "inputs", "outputs", "tokens", "max_rows", "max_steps", "mixed",
    "clients", "description", "parameters",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fields:
    """What one kind of answer holds, row by row.

    Attributes:
        schema: The fields of a row.
        digits: Decimal places of each float field.
    """

    schema: Schema
    digits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        floats = {f.name for f in self.schema.fields if f.element.kind == "float"}
        for name in sorted(floats ^ self.digits.keys()):
            raise _bad(f"{name}.digits", "only a float field can have digits")
        for name, digits in self.digits.items():
            if not 0 <= digits <= MAX_DIGITS:
                raise _bad(f"{name}.digits", f"it must be from 0 to {MAX_DIGITS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelForm:
    """What a model is asked, and what it answers.

    Attributes:
        inputs: The fields of a row of a question.
        outputs: Of a row of an answer of ``predict``; None if it predicts nothing.
        tokens: Of a row of each step of ``generate``; None if it generates nothing.
        max_rows: Most rows of one question.
        max_steps: Most steps of one generation.
        mixed: Whether rows of several clients may share a batch.
        clients: Identity keys that may ask, by name; empty for anybody.
        parameters: What the recipe's ``build`` is called with.
    """

    inputs: Schema
    outputs: Fields | None = None
    tokens: Fields | None = None
    max_rows: int = 64
    max_steps: int = 256
    mixed: bool = False
    clients: Mapping[str, PublicKey] = field(default_factory=dict)
    description: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.outputs is None and self.tokens is None:
            raise _bad("outputs", "a model must have outputs, tokens or both")
        for name, most in (("max_rows", MAX_ROWS), ("max_steps", MAX_STEPS)):
            if not 1 <= getattr(self, name) <= most:
                raise _bad(name, f"it must be from 1 to {most}")
        if len(self.clients) > MAX_CLIENTS:
            raise _bad("clients", f"the limit is {MAX_CLIENTS} clients")
        for name in self.clients:
            check_name(name, what="client's name")
        for name, value in self.parameters.items():
            if not isinstance(value, Parameter):
                raise _bad(f"parameters.{name[:60]}", "it must be a number or a text")

    def to_plain(self) -> dict[str, Any]:
        """What stands in the agreement."""
        plain: dict[str, Any] = {
            "format": FORMAT,
            "inputs": schema_to_plain(self.inputs),
            "max_rows": self.max_rows,
            "max_steps": self.max_steps,
            "mixed": self.mixed,
            "clients": {name: key.to_text() for name, key in self.clients.items()},
        }
        for name in ("outputs", "tokens"):
            if (found := getattr(self, name)) is not None:
                plain[name] = _fields_to_plain(found)
        if self.description:
            plain["description"] = self.description
        if self.parameters:
            plain["parameters"] = dict(self.parameters)
        return plain


def form_of(resource: Resource) -> ModelForm:
    """The form of a model's resource.

    Raises:
        MalformedError: code ``bad-form``.
    """
    if resource.part != "model":
        raise MalformedError(f"{resource.name} is not a model", code="bad-form")
    return form_from_plain(resource.schema)


def choose_model(agreement: VerifiedAgreement, name: str) -> Resource:
    """The model of that name, or the only one.

    Raises:
        PolicyError: ``no-such-model``, if there is none, or several and no name.
    """
    models = [e for e in agreement.agreement.resources if e.part == "model"]
    named = [each for each in models if each.name == name or not name]
    if len(named) != 1:
        known = ", ".join(each.name for each in models) or "none"
        raise PolicyError(
            f"the agreement has no model {name[:63]!r}"
            if name
            else "the agreement has several models, and none is named",
            why=f"its models are {known}",
            code="no-such-model",
        )
    return named[0]


def load_form(path: Path) -> ModelForm:
    """Read the TOML that a model's owner wrote; clients may be cards beside it.

    Raises:
        UnavailableError: if a file cannot be read.
        MalformedError: with the path of the first field that is wrong.
    """
    plain = parse_toml(read_whole(path, MAX_FORM_BYTES), source=str(path))
    for name in ("inputs", "outputs", "tokens"):
        if isinstance(plain.get(name), list):  # [[inputs]] is shorter to write
            plain[name] = {"fields": plain[name]}
    cards = plain.get("clients", {})
    if isinstance(cards, list):
        found = [load_card(path.parent / str(card)) for card in cards]
        plain["clients"] = {card.name: card.sign.to_text() for card in found}
    return form_from_plain({"format": FORMAT, **plain})


def form_from_plain(plain: Mapping[str, Any]) -> ModelForm:
    """Parse the plain form, strictly.

    Raises:
        MalformedError: with the path of the first field that is wrong.
    """
    for name in sorted(plain.keys() - _KEYS):
        near = nearest(str(name), _KEYS)
        raise _bad(str(name)[:60], "unknown field", fix=near)
    if plain.get("format") != FORMAT:
        raise _bad("format", f"it must be {FORMAT!r}")
    clients = _typed(plain, "clients", dict, {})
    return ModelForm(
        inputs=_schema(_typed(plain, "inputs", dict, None), "inputs"),
        outputs=_fields(plain, "outputs"),
        tokens=_fields(plain, "tokens"),
        max_rows=_typed(plain, "max_rows", int, 64),
        max_steps=_typed(plain, "max_steps", int, 256),
        mixed=_typed(plain, "mixed", bool, False),
        clients={name: PublicKey.from_text(str(key)) for name, key in clients.items()},
        description=_typed(plain, "description", str, ""),
        parameters=_typed(plain, "parameters", dict, {}),
    )


def _fields(plain: Mapping[str, Any], name: str) -> Fields | None:
    table = plain.get(name)
    if table is None:
        return None
    rows = _typed(_typed(plain, name, dict, None), "fields", list, None)
    digits, bare = {}, []
    for row in rows:
        row = dict(row) if isinstance(row, dict) else {}
        if "digits" in row:
            digits[str(row.get("name"))] = _typed(row, "digits", int, 0)
            del row["digits"]
        bare.append(row)
    return Fields(_schema({**table, "fields": bare}, name), digits)


def _fields_to_plain(found: Fields) -> dict[str, Any]:
    plain = schema_to_plain(found.schema)
    for row in plain["fields"]:
        if row["name"] in found.digits:
            row["digits"] = found.digits[row["name"]]
    return plain


def _schema(plain: Any, name: str) -> Schema:
    return schema_from_plain(plain, source=f"the model's {name}")


def _typed(plain: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = plain.get(name, default)
    if type(value) is not kind:
        raise _bad(name, f"expected {kind.__name__}, found {type(value).__name__}")
    return value


def _bad(path: str, why: str, *, fix: str = "") -> MalformedError:
    return MalformedError(
        "the model's form is not valid", field=path, why=why, fix=fix, code="bad-form"
    )
