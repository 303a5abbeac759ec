"""The Recorder: it runs steps under a capture, writes the transcript, serves the chip, and resumes after a crash."""
