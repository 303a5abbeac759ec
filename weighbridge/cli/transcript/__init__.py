"""`weighbridge transcript ...`: transcripts as files."""
