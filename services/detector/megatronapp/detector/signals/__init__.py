"""What one step says about each rank and link: functions from a StepTable to arrays. None of them judges."""
