"""Recorded jobs of other tools and our own trace folders, read into StepTables."""
