"""The command line; the only place that composes services into one process."""
