"""`weighbridge inspect ...`: inspections, draws, and what the Verifier needs for them."""
