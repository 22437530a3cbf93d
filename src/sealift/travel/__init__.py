"""GPU Travelling: one accelerator visits each holder; cargo, leases, pools, scrub."""
