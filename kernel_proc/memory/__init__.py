"""Address spaces of user processes, arenas, private memory and MDLs (NT: Mm)."""
