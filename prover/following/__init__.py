"""Recording by following: a whole program is recorded as it is, without blocks around its steps."""
