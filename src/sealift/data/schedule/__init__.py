"""How much of the rows, and in which order: orders of epochs, memory for a visit."""
