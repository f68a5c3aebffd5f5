"""The HCA driver: verbs, commands, events, memory registration."""
