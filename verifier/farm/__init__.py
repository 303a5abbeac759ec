"""Where replays run: on this machine's devices or on a Ray cluster."""
