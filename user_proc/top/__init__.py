"""A running kernel over time: what its state tells, as rates between two looks."""
