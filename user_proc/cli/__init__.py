"""The `softhca` command."""
