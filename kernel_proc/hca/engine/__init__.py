"""The part of the HCA that serves work queues."""
