"""`sealift join` looks at what its files say of themselves before it attends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sealift.channel.record.rawfile import RawSealedFile
from sealift.crypto.identity import create_identity
from sealift.crypto.keys import SecretKey
from sealift.data.schema.document import schema_to_plain
from sealift.data.schema.schema import Field, Schema
from sealift.data.sealing import seal_table
from sealift.errors import MalformedError
from sealift.release.vault.vault import Vault
from sealift.train.job.heldfiles import check_keys
from sealift.travel.holder.visit import HeldResource

NORTH = create_identity("north")
SCHEMA = Schema((Field("age", "float32"), Field("pulse", "float32")))
SWAPPED = Schema((Field("pulse", "float32"), Field("age", "float32")))


@pytest.fixture
def check(tmp_path: Path) -> Callable[[Schema], None]:
    """Join with an agreement that says these columns."""
    np.savez(tmp_path / "t.npz", age=np.ones(8, "f4"), pulse=np.ones(8, "f4"))
    key = SecretKey.generate()
    card = seal_table(
        tmp_path / "t.npz", SCHEMA, name="t", part="train", owner="north", key=key,
        out_dir=tmp_path,
    )  # fmt: skip
    with closing(Vault.create(tmp_path / "v.db", NORTH)) as vault:
        vault.store("t", key)

    def joined(agreed: Schema) -> None:
        resource = replace(card.resource, schema=schema_to_plain(agreed))
        with closing(RawSealedFile(tmp_path / "t.sealed")) as source:
            held = {"t": HeldResource(resource, source, card.leaves)}
            setup = SimpleNamespace(identity=NORTH)
            check_keys(setup, tmp_path / "v.db", held)  # type: ignore[arg-type]

    return joined


def test_an_agreement_with_other_columns_is_not_served(
    check: Callable[[Schema], None],
) -> None:
    """In every mode, also those in which nobody else sees the header of home."""
    with pytest.raises(MalformedError) as caught:
        check(SWAPPED)
    assert caught.value.code == "schema-mismatch"
    assert "the agreement" in caught.value.what


def test_the_agreement_that_was_made_of_its_card_is(
    check: Callable[[Schema], None],
) -> None:
    """Control; an owner may add words to a schema."""
    check(SCHEMA)
    fields = [replace(each, description="of a patient") for each in SCHEMA.fields]
    check(Schema(tuple(fields)))
