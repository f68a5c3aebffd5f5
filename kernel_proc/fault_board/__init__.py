"""Faults of the kernel and its door, and the list of all: imported when the first is set."""
