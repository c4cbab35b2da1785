"""KV events: bytes to index changes, in order, or not at all."""
