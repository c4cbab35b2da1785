"""The laboratory: model replicas and, on them, the same router over virtual time."""
