"""A stream sealed at home, and one like it by somebody who has the owner's key."""

from __future__ import annotations

import os

from sealift.channel.record.record import StreamOptions
from sealift.channel.record.sealer import StreamSealer
from sealift.crypto.keys import SecretKey
from tests.sim.linkworld import RECORD_BYTES


class HomeStream:
    """Records of ``plaintext``, under a header that is fresh unless ``seed`` says else."""

    def __init__(self, num_records=4, key=None, seed=None):
        self.key = key or SecretKey.generate()
        self.seed = seed or os.urandom(32)
        self.plaintext = os.urandom(num_records * RECORD_BYTES)
        options = StreamOptions(random_bytes=lambda length: self.seed[:length])
        sealer = StreamSealer(
            self.key, total_bytes=len(self.plaintext), record_bytes=RECORD_BYTES,
            options=options,
        )  # fmt: skip
        self.header = sealer.header_bytes
        starts = range(0, len(self.plaintext), RECORD_BYTES)
        parts = [self.plaintext[at : at + RECORD_BYTES] for at in starts]
        self.records = [sealer.seal(part) for part in parts]

    def twin(self):
        """Other content under the very same keys and header (rule R2 forbids it)."""
        return HomeStream(len(self.records), self.key, self.seed)

    def again(self):
        """The same key, a header of its own."""
        return HomeStream(len(self.records), self.key)

    def home_key(self, header):
        return self.key

    def forward(self, world, first=0, last=None):
        """Forward records from ``first`` to before ``last``; what the device found."""
        records = self.records[first:last]
        return world.cross(
            lambda: world.sender.forward(
                self.header, records, len(records) * RECORD_BYTES, first_index=first
            )
        )


def skipping(self, prefix, frame_bytes, bound, tag):
    """A mutant of ``LinkOpener.verify_bound``: counts, and checks nothing."""
    self._accept(self._last_sequence + 1, 0)
