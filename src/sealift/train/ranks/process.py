"""The process of a rank: what stays of it while connections and keys come and go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sealift.attest.evidence import Attester, measuring
from sealift.errors import PolicyError, UsageError
from sealift.release.agreement.code import load_assets, load_bundle
from sealift.release.files import make_folder
from sealift.session.direct import PathDialler
from sealift.session.directhost import DirectHost
from sealift.session.endpoint import Endpoint
from sealift.session.relay.client import RelayClient
from sealift.session.relay.envelope import prover
from sealift.train.job.checkpoints import CheckpointFolder
from sealift.train.job.releasedkeys import enrol_where_missing
from sealift.train.job.rolesetup import RoleSetup
from sealift.train.job.runningjob import JobShapes
from sealift.train.ranks.rank import Rank, RankPlaces
from sealift.train.sandbox import kernel as limits
from sealift.train.worker.executor import RecipeExecutor
from sealift.travel.holder.jobs import Receipts
from sealift.travel.peers import accelerator_names
from sealift.travel.visit.state import Clock


def rank_of(setup: RoleSetup, said: int | None) -> int:
    """Which rank this process is.

    Args:
        setup: Of the role.
        said: By whoever starts it; where rows stay at home the identity says it.

    Raises:
        PolicyError: ``not-a-data-owner``.
        UsageError: ``bad-world``, if it is said wrongly, or not at all.
    """
    agreement = setup.agreement.agreement
    if agreement.rows_at_home:
        owner = setup.identity.name
        if owner not in agreement.data_owners:
            raise PolicyError(
                f"{owner} has no training rows in this agreement",
                code="not-a-data-owner",
            )
        own = agreement.data_owners.index(owner)
        if said is not None and said != own:
            raise UsageError(
                f"the accelerator of {owner} is rank {own}, not rank {said}",
                code="bad-world",
            )
        return own
    if said is None or not 0 <= said < agreement.ranks:
        raise UsageError(
            f"rank {said} is not one of the {agreement.ranks} ranks"
            if said is not None
            else "the rank of this process is not given",
            fix=f"Give --rank, from 0 to {agreement.ranks - 1}",
            code="bad-world",
        )
    return said


def torchrun_rank(setup: RoleSetup, environment: Mapping[str, str]) -> int:
    """Which rank this process is, of those that torchrun started.

    Where rows stay at home it is the owner's, whatever number torchrun gave to it.

    Raises:
        UsageError: ``bad-world``, if they are not as many as agreed; and see ``rank_of``.
    """
    agreement = setup.agreement.agreement
    said, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    if not said.isdecimal() or not size.isdecimal():
        raise UsageError(
            "RANK and WORLD_SIZE are not numbers",
            fix="Start the ranks with torchrun -m sealift.train",
            code="bad-world",
        )
    if int(size) != agreement.ranks:
        raise UsageError(
            f"torchrun started {int(size)} ranks; the agreement names "
            f"{agreement.ranks}",
            code="bad-world",
        )
    return rank_of(setup, None if agreement.rows_at_home else int(said))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """What stays when a connection is lost; keys and states do not."""

    setup: RoleSetup
    rank: int
    attester: Attester
    executor: RecipeExecutor
    places: RankPlaces
    clock: Clock
    must_resume: bool
    shapes: JobShapes = field(default_factory=JobShapes)

    def serve(self, dial_s: float, joined: Callable[[], None]) -> None:
        """Serve the job over one connection, with an instance key of its own.

        Raises:
            See ``Rank.serve``.
        """
        setup, endpoint = self.setup, self._endpoint()
        prove = None
        if endpoint.identity is not None:
            prove = prover(endpoint.identity, setup.agreement.digest, endpoint.name)
        with RelayClient.dial(setup.address, endpoint.name, dial_s, prove) as relay:
            enrol_where_missing(
                relay,
                endpoint,
                setup.agreement,
                wait_s=setup.job.run.gather_s,
                sink=setup.sink,
            )
            Rank(
                relay,
                endpoint,
                setup.agreement,
                executor=self.executor,
                places=self.places,
                clock=self.clock,
                must_resume=self.must_resume,
                shapes=self.shapes,
                sink=setup.sink,
            ).serve(joined)

    def _endpoint(self) -> Endpoint:
        """With its owner's identity, where that is part of the proof."""
        agreement = self.setup.agreement.agreement
        name = accelerator_names(agreement.ranks)[self.rank]
        endpoint = self.setup.attested(name, self.attester)
        if agreement.rows_at_home:
            return replace(endpoint, identity=self.setup.identity)
        return endpoint


@contextmanager
def open_rank(
    setup: RoleSetup,
    rank: int,
    attester: Attester,
    *,
    sealed: Sequence[Path],
    receipts: Path,
    state: Path,
    direct_host: DirectHost | None,
    dialler: PathDialler,
    clock: Clock,
    must_resume: bool,
    tell: Callable[[str], None],
) -> Iterator[RankProcess]:
    """A rank that is ready to dial.

    Args:
        setup: Of the role.
        rank: Its number.
        attester: Of its host.
        sealed: Folders with sealed files and cards.
        receipts: Folder that gets one for each use of rows.
        state: Folder of checkpoints, which rank 0 keeps.
        direct_host: Where later ranks may connect.
        dialler: Which places of earlier ranks may be dialled.
        clock: Seconds that also count while the machine sleeps.
        must_resume: Whether the job must not begin from the beginning.
        tell: Gets lines: what keeps recipes in, and where they compute.

    Raises:
        SealiftError: if anything of it cannot be had.
    """
    agreement = setup.agreement.agreement
    files = load_bundle(Path(setup.job.bundle), agreement.code)
    limits.hide_memory()
    make_folder(receipts)
    text = sys.stderr if agreement.output_rule.recipe_text else None
    with (
        CheckpointFolder(state / f"rank-{rank}") as folder,
        RecipeExecutor(
            files,
            agreement.code.entry,
            text=text,
            tell=tell,
            measure=measuring(attester),
            assets=load_assets(Path(setup.job.bundle), agreement.code.files),
        ) as executor,
    ):
        yield RankProcess(
            setup=setup,
            rank=rank,
            attester=attester,
            executor=executor,
            places=RankPlaces(
                sealed=sealed,
                receipts=Receipts(receipts),
                state=folder,
                direct_host=direct_host,
                dialler=dialler,
            ),
            clock=clock,
            must_resume=must_resume,
        )
