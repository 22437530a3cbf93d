"""The data owner: opens its sealed rows and feeds the process that owns the device."""

import sys

from sealift import feed as link
from sealift.data import SealedDataLoader, SealedDataset, owner_keys
from sealift.errors import SealiftError

FORM = {"x": ("float32", (32, 8)), "label": ("int64", (32,))}  # of every batch


def main() -> None:
    """Feed five epochs."""
    with owner_keys("vault.db", "north.key", passphrase_file="north.pass") as keys:
        dataset = SealedDataset("sealed/train.sealed", keys)
    with (
        SealedDataLoader(dataset, 32, shuffle=True, drop_last=True) as batches,
        link.offer(
            "feed.sock",
            FORM,
            agreement="agreement.json",
            identity="north.key",
            passphrase_file="north.pass",
            development=True,  # takes evidence that protects nobody
        ) as device,
    ):
        print(f"the device proves: {device.seen.level}", flush=True)
        for epoch in range(5):
            sent = device.send_ahead(batches)  # sealed while the device computes
            print(f"epoch {epoch}: {sent} batches verified there", flush=True)


if __name__ == "__main__":
    try:
        main()
    except SealiftError as error:
        sys.exit(f"owner: {error} [{error.code}]")
