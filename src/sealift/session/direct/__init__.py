"""Direct paths: the frames of a session, without the relay between its ends."""
