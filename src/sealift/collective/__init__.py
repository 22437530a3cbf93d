"""Sums over several ranks, sealed pairwise (spec/collective.md). No torch."""
