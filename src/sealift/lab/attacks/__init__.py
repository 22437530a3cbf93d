"""The attack table: scenarios in memory against the real session and visit code."""
