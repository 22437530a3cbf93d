"""Where everything of a demo lies: one folder, and one in it for each party."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

OWNERS: Final = ("north", "east", "south")  # bring data
MODEL_OWNER: Final = "lab"  # brings the recipe, gets the model
OPERATOR: Final = "cloud"  # runs the orchestrator
HOST: Final = "gpu-host"  # runs the accelerator
PARTIES: Final = (*OWNERS, MODEL_OWNER, OPERATOR, HOST)


@dataclass(frozen=True, slots=True)
class Home:
    """One party's own folder.

    Attributes:
        act: Of the demo; empty for the first one.
    """

    path: Path
    act: str = ""

    @property
    def key(self) -> Path:
        """Its identity file."""
        return self.path / "identity.key"

    @property
    def card(self) -> Path:
        """Its public card."""
        return self.path / "party.card.json"

    @property
    def passphrase(self) -> Path:
        """Where a demo keeps what people keep in their heads."""
        return self.path / "passphrase"

    @property
    def vault(self) -> Path:
        """The owner's data keys, wrapped."""
        return self.path / "vault.db"

    @property
    def log(self) -> Path:
        """The owner's audit log."""
        return self.path / "audit.db"

    @property
    def heads(self) -> Path:
        """The last head seen of every log."""
        return self.path / "heads.json"

    @property
    def sealed(self) -> Path:
        """Sealed files and their cards."""
        return self.path / "sealed"

    @property
    def receipts(self) -> Path:
        """Signed receipts."""
        return self.path / f"receipts{self.act}"


@dataclass(frozen=True, slots=True)
class World:
    """The demo's folder.

    Attributes:
        act: Of the demo; empty for the first one. Each has a job and results of its own.
    """

    path: Path
    act: str = ""

    def home(self, party: str) -> Home:
        """A party's folder."""
        return Home(self.path / party, self.act)

    def homes(self) -> tuple[Home, ...]:
        """Every party's folder."""
        return tuple(self.home(name) for name in PARTIES)

    @property
    def job(self) -> Path:
        """``job.toml``."""
        return self.path / f"job{self.act}.toml"

    @property
    def agreement(self) -> Path:
        """The signed agreement."""
        return self.path / "agreement.json"

    @property
    def bundle(self) -> Path:
        """The code that all parties agreed on."""
        return self.path / "recipe"

    @property
    def run(self) -> Path:
        """The results."""
        return self.path / f"run{self.act}"

    @property
    def model(self) -> Path:
        """The model, as its owner opened it."""
        return self.path / "model.safetensors"

    @property
    def report(self) -> Path:
        """The page."""
        return self.path / "report.html"
