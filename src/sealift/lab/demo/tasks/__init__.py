"""What the demo's parties learn together, one file per task."""
