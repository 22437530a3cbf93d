"""A name that a test takes from the product, and that is not there, is found unimported."""

from __future__ import annotations

import ast

import pytest

from scripts import names

KNOWN = names.modules()


def faults(source: str) -> list[str]:
    return [text for _, text in names.Reader(KNOWN, ast.parse(source)).faults()]


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("from sealift.codec import gone", "sealift.codec has no gone"),
        ("from sealift.gone import encode", "sealift.gone has no encode"),
        ("from sealift import gone", "sealift has no gone"),
        ("import sealift.gone", "sealift has no gone"),
        ("from tests.sim import gone", "tests.sim has no gone"),
        (
            "from sealift.crypto import identity\nidentity.GONE = 1",
            "sealift.crypto.identity has no GONE",
        ),
        (
            "from sealift.crypto import identity\nm.setattr(identity, 'gone', 1)",
            "sealift.crypto.identity has no gone",
        ),
        (
            "m.setattr('sealift.crypto.identity.gone', 1)",
            "sealift.crypto.identity has no gone",
        ),
        ("import_module('sealift.gone')", "sealift has no gone"),
        ("import_module('tests.sim.warm').gone()", "tests.sim.warm has no gone"),
    ],
)
def test_a_name_that_is_gone_is_found(source: str, missing: str) -> None:
    assert missing in faults(source)


def test_names_that_are_there_or_may_be_are_no_faults() -> None:
    assert not faults(
        "from sealift import connect, crypto\n"  # by __getattr__, and a package
        "from sealift.crypto import identity\n"
        "from torch import anything\n"
        "identity.SCRYPT_LOG2_N = 10\n"
        "m.setattr(identity, 'gone', 1, raising=False)\n"
        "m.setattr('sealift.crypto.identity.Identity.method', 1)\n"
    )


def test_a_name_that_is_something_else_here_is_no_module() -> None:
    assert not faults(
        "from sealift.crypto import identity\ndef f(identity): identity.x"
    )
