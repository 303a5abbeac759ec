"""Captures one step: each operation becomes a node of the step's tape and is evaluated under its rule."""
