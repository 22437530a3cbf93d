"""A model to serve, and everything around it: real identities, vault, agreement, files."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import save

from sealift.crypto.keys import SecretKey
from sealift.data.card import ResourceCard, read_card
from sealift.release.document import compile_document
from sealift.release.files import write_whole
from sealift.release.signed import (
    VerifiedAgreement,
    add_signature,
    load_verified,
    save_signed,
)
from sealift.release.starter import Starter
from sealift.release.vault import Vault
from sealift.train.containment import let_through
from sealift.train.modelform import load_form
from sealift.train.recipe import Recipe
from sealift.train.serving.sealedmodel import seal_model_file
from tests.sim.jobworld import identities, plain_world

RECIPE = """
import time

import torch
from torch import nn


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


def build():
    torch.manual_seed(5)
    return Twice()


def predict(model, batch):
    x = batch["x"]
    if bool((x == 99).any()):
        raise ValueError(f"secret row {x}")
    if bool((x == 98).any()):
        time.sleep(60)
    y = model(x)
    return {"y": y, "best": y.argmax(dim=1), "hidden": x}


def generate(model, batch):
    x = batch["x"]
    for step in range(1000):
        x = x * 0.5
        yield {"token": x.sum(dim=1)}
"""
FORM = """
max_rows = 8
max_steps = 50
mixed = true
clients = []

[[inputs]]
name = "x"
dtype = "float32"
shape = [4]
min = -1000
max = 1000

[[outputs]]
name = "y"
dtype = "float32"
shape = [3]
digits = 3

[[outputs]]
name = "best"
dtype = "int64"
classes = 3

[[tokens]]
name = "token"
dtype = "float32"
digits = 4
"""
JOB = """\
name = "ask"
agreement = "agreement.json"
bundle = "code"
plan = "serve"

[serving]
listen = "127.0.0.1:0"
sealed = "sealed"
{serving}
"""


@dataclass
class ServingWorld:
    """The files of a model's owner (lab) and of who runs its server (cloud)."""

    path: Path
    recipe: str = RECIPE
    form: str = FORM
    serving: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def job(self) -> Path:
        return self.path / "job.toml"

    @property
    def agreement(self) -> Path:
        return self.path / "agreement.json"

    @property
    def vault(self) -> Path:
        return self.path / "vault.db"

    @property
    def owner_card(self) -> Path:
        return plain_world().home("lab").card

    def verified(self) -> VerifiedAgreement:
        return load_verified(self.agreement)

    def make(self) -> ServingWorld:
        """Seal, agree, sign."""
        code = self.path / "code"
        code.mkdir(parents=True)
        (code / "recipe.py").write_text(self.recipe)
        self.seal(self.weights())
        document = self.path / "agreement.toml"
        document.write_text(self.document())
        signed = compile_document(document, lambda path: read_card(path).resource)
        for name in ("lab", "cloud"):
            signed = add_signature(signed, identities()[name])
        save_signed(signed, self.agreement)
        self.job.write_text(JOB.format(serving=self.serving))
        return self

    def weights(self) -> bytes:
        """The model's state as safetensors."""
        recipe = Recipe(
            {"recipe.py": self.recipe.encode()}, "recipe.py", guard=let_through
        )
        return save(dict(recipe.build().state_dict()))

    def seal(self, content: bytes, name: str = "twice") -> ResourceCard:
        form_path = self.path / "form.toml"
        write_whole(form_path, self.form.encode())
        (self.path / "sealed").mkdir(exist_ok=True)
        lab, key = identities()["lab"], SecretKey.generate()

        def keep(card: ResourceCard) -> None:
            make = Vault.open if self.vault.exists() else Vault.create
            with closing(make(self.vault, lab)) as vault:
                vault.store(card.name, key)

        return seal_model_file(
            content,
            load_form(form_path),
            name=name,
            owner="lab",
            key=key,
            out_dir=self.path / "sealed",
            keep=keep,
        )

    def document(self) -> str:
        starter = Starter(
            name="answers",
            now_s=1_790_000_000.0,
            party_cards=[
                (str(plain_world().home(n).card), n) for n in ("lab", "cloud")
            ],
            resource_cards=[("sealed/twice.resource.json", "lab")],
            bundle="code",
            entry="recipe.py",
            model_owner="lab",
            operator="cloud",
            attesters=[identities()["cloud"].public_key],
            serves=True,
        )
        text = starter.to_toml()
        for old, new in self.extra.items():
            assert old in text, old
            text = text.replace(old, new)
        return text
