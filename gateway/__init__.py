"""The gateway: all input and output around the pure routing core."""
