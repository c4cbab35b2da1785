"""What L2 is worth by prompt length and concurrency, on replicas with an A10G's times."""
