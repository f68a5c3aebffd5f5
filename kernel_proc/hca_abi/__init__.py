"""What driver and HCA agree on: registers, commands, contexts, events. No behaviour."""
