"""What taking in KV events costs a gateway: speed, memory, and the requests beside it."""
