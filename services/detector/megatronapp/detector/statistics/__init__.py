"""Robust scales and sequential tests; pure numpy, vectorised over the things that are watched."""
