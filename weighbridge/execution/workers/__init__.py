"""The processes in which tapes are executed: no keys, no network, limited memory and time."""
