"""Faults as a user names them, in a file or on a command line, and how a kernel is told of them."""
