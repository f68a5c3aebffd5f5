"""User memory the kernel can reach: arenas and private memory."""
