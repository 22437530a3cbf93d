"""What a job goes on from: a sealed file, and which of them counts."""
