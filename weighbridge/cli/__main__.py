"""`python -m weighbridge.cli`: the same as the console script `weighbridge`."""

from weighbridge.cli.main import main

main()
