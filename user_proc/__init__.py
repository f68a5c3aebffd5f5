"""The user side: the door's other end, device handles, user memory, and the tools built on them."""
