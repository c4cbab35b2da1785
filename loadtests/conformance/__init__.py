"""Real vLLM engines on CPU: what they make of requests, and whether the gateway foresees it."""
