"""Teaching devices: the no-op device."""
