"""What each command does: one function a command, grouped by what it works on."""
