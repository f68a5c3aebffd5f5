"""For every test that may make a machine in its own process."""

from tests.machines_given_back import stacks_given_back

__all__ = ["stacks_given_back"]
