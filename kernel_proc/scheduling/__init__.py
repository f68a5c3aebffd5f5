"""The emulated processor: IRQL, threads, waits, APCs, DPCs, interrupts, bug checks (NT: Ke, Ps)."""
