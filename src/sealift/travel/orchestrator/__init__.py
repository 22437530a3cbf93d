"""The orchestrator: who is visited when, under which lease."""
