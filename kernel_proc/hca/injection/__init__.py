"""Faults of the HCA itself: imported when the first is set, and by nothing else."""
