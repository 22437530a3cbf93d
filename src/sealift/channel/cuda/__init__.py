"""The CUDA device engine. Importing it needs no GPU, no driver and no CUDA package."""
