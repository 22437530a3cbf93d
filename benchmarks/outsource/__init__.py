"""What products on servers cost: ours, the published ones, and none at all."""
