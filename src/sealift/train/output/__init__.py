"""What leaves a run: model, manifest and receipts, and how their reader checks them."""
