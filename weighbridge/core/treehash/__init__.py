"""BLAKE3 tree hashing of tensors where their memory is: host loops and a Triton kernel."""
