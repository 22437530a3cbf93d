"""How the product's cost grows with its work: models, and beside it plain torch."""
