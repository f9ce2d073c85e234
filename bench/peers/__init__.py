"""Programs of others, in an environment of their own, that benchmarks run beside Ferryman."""
