"""The shared pool (L2): what is in it, how healthy it is, and who keeps it tidy."""
