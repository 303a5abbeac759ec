"""What a tape's program does, read from the tape alone: data flow, origins, gradients, FLOPs, policy."""
