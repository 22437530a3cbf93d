"""The process that runs a recipe: one that waits and forks, one fresh one per task."""
