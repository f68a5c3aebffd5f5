"""The emulated HCA: it knows bus addresses, registers, doorbell pages and its interrupt line."""
