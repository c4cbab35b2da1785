"""Traffic for the demo and the load tests: made from a seed, or replayed from real logs."""
