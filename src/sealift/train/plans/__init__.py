"""How the work of a job is laid out: one record a plan, and what a model was trained on."""
