"""`weighbridge chip ...`: simulated chips and their logs."""
