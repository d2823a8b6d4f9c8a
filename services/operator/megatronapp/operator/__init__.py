"""The operator: TrainingJobs become Indexed Jobs, and their state, restarts and remediation are kept up."""
