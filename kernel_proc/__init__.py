"""The kernel process: scheduling, memory, I/O manager, drivers and the door for user processes."""
