"""What a release is made of: the wheel, the source distribution, and the bill of materials. Never installed."""
