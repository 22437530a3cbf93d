"""Mutants: a check taken away, so that a test shows what the check keeps out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sealift.attest.verifier import AppraisalCheck

Patch = Callable[[pytest.MonkeyPatch], None]


def without(module: object, name: str) -> Patch:
    """A mutant whose check ``name`` lets everything pass."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, name, lambda *args, **kwargs: None)

    return patch


def passing(module: object, name: str) -> Patch:
    """A mutant whose comparison ``name`` passes whatever it compares."""
    passed = AppraisalCheck(subject="mutant", expected="", found="")

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, name, lambda *args, **kwargs: passed)

    return patch
