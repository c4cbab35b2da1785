"""Discovery: which replicas a model has, one file for each place that knows."""
