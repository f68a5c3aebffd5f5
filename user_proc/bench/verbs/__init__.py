"""The benchmark of the control verbs, of a user, of a kernel client, and of many at once."""
