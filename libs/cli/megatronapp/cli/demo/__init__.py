"""The demo: the platform in one process, a real training run, and a slow rank that it has to find."""
