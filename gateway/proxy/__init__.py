"""The relay: one request to one replica, and its answer back."""
