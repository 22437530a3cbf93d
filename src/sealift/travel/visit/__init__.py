"""What both ends of a visit share: lease, frames, state, messages, memory and its scrub."""
