"""What rules make of operations: kernels with wide operands, and loops where kernels differ or take more trips."""
