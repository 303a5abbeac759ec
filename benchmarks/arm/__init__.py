"""Transcripts replayed on emulated ARM processors and recorded there: `make arm`."""
