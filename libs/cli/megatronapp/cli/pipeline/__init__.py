"""What the command line adds to core/pipeline."""
