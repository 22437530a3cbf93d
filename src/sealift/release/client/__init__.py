"""The other side of a broker: an accelerator, a holder, or another owner's broker asks."""
