"""What both processes import: bytes that cross the boundary, or the clock and trace both read."""
