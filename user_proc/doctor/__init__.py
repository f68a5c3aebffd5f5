"""What this machine lacks for SoftHCA, and what dead kernels have left on it."""
