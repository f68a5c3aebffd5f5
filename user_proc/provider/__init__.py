"""The user-mode driver: rings, doorbells and completions in shared memory, without any call."""
