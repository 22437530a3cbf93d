"""What stands on the product: worlds, the demo, attacks, benches, and the guest they boot."""
