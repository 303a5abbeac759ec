"""One file each revision, in the order of their numbers."""
