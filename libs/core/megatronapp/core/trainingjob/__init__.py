"""TrainingJob, megatronapp.io/v1alpha1: the one description of a training run, for a laptop and for a cluster.

The models are the schema's single source: the custom resource's definition is made from them. Names are camelCase
outside and snake_case inside.
"""

from megatronapp.core.trainingjob.job import Metadata, TrainingJob
from megatronapp.core.trainingjob.sizing import Parallelism
from megatronapp.core.trainingjob.spec import Spec
from megatronapp.core.trainingjob.status import Condition, ConditionType, Phase, Reason, Status

__all__ = ["Condition", "ConditionType", "Metadata", "Parallelism", "Phase", "Reason", "Spec", "Status", "TrainingJob"]
