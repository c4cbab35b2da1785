"""HTTP endpoints: the public API and the admin API."""
