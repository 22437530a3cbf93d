"""Graph recipes: a model without a program. Spec: spec/graph.md."""
