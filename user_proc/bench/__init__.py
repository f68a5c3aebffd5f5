"""The boundary benchmark: rows, floors, blocks and the run document."""
