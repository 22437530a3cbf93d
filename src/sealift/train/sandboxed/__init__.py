"""What runs inside a recipe's process. This folder, and no other in `train`, loads torch."""
