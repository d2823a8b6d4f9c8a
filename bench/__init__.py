"""Benchmarks that anybody can run: `python -m bench` runs all, `python -m bench.<name>` one."""
