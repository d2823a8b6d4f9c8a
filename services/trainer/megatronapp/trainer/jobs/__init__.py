"""TrainingJobs run on this machine, by torchrun, as a cluster would run them."""

from megatronapp.trainer.jobs.plan import LocalPlan
from megatronapp.trainer.jobs.runner import JobEvent, JobResult, run_job, run_job_until_signal

__all__ = ["JobEvent", "JobResult", "LocalPlan", "run_job", "run_job_until_signal"]
