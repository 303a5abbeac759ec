"""The rounding pass: contested elements found, logged and followed; and the log's coding."""
