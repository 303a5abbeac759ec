"""What the Verifier keeps: its database, the database's revisions, and its cache of transcripts."""
