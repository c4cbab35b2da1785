"""Two real vLLM replicas with a real LMCache each and one shared directory, behind the gateway."""
