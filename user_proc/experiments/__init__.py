"""Experiments: questions answered from what was run, with real user processes or in a child."""
