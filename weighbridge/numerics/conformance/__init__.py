"""What error bounds claim of a device, and the probes and switches that make the claim true."""
