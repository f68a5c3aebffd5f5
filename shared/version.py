"""Which version of SoftHCA this is: the same answer on both sides.

The package's metadata has it from here: to look it up there takes longer than to import this.
"""

__version__ = "0.1.0"


def softhca_version() -> str:
    """Return the version of the code that runs."""
    return __version__
