"""What one step says about each rank and link: pure functions from a StepTable to arrays. Judging them is not done here."""
