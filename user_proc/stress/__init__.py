"""Random programs of verbs against a model that knows what must come back, and what they find."""
