"""Facts about engines: paths, metric names, event fields."""
