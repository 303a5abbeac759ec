"""`weighbridge tape ...`: what a program does."""
