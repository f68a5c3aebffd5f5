"""Drivers, devices, files, handles and IRPs (NT: Io, Ob)."""
