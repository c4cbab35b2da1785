"""The demo model: a small tokenizer and chat template for fleets that have no real weights."""
