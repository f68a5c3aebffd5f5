"""Kernel-mode clients: the IRP and the direct-call benchmark clients."""
