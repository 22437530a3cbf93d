"""How the product's cost grows with its work, a part for each kind of work."""
