"""The Verifier: chip registry, sampling, inspections, checks and reports. It works from bytes alone."""

__all__: list[str] = []  # used by its commands, its gRPC service and its formats
