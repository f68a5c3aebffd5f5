"""The user's end of the door: lifeline, one DEALER per thread, the listener."""
