"""Steps that all slices of a job make together: their gradients are added up."""
