"""The door: lifelines, sessions and the request socket through which user processes enter."""
