"""Who is this machine? Evidence is collected, appraised and judged (RFC 9334)."""
