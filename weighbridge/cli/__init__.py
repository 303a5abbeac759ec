"""The command line: one module per command group, heavy rooms imported inside the commands that need them."""
