"""`weighbridge gpu-evidence ...`: what a device does with the standard trainings, in one signed file."""
