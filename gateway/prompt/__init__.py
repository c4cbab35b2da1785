"""From a request body to token ids: what the engine will run."""
