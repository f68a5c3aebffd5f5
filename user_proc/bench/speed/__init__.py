"""The benchmark of the data path, between queue pairs of one process, of two, and of several."""
