"""Experiments inside the emulated machine: each asks one question and answers it from its rows."""
