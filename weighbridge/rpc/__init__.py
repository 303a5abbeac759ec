"""gRPC over mutual TLS: servers, clients, limits of callers, metrics."""
