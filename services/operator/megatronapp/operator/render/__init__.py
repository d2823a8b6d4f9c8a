"""A TrainingJob and the number of an attempt → the objects that run it. Pure: no I/O, no clock."""

from megatronapp.operator.render.job import render_job
from megatronapp.operator.render.network_policy import render_network_policy
from megatronapp.operator.render.plan import Plan, RenderSettings
from megatronapp.operator.render.service import render_service

__all__ = ["Plan", "RenderSettings", "render_job", "render_network_policy", "render_service"]
