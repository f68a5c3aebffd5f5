"""Tables of routines a driver offers to kernel clients beside its IRPs: types only."""
