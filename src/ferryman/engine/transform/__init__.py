"""2. Transform: executors walk documents through the plan, and stage what the wave will commit."""
