"""Groups of user processes: described in a file, started together, supervised, ended together."""
