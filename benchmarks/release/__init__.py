"""Keys by proof: one, many at once, renewed, lost; and what their parts cost."""
