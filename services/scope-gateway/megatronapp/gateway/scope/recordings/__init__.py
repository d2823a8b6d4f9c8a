"""What a viewer saw, kept as a file and shown again without a model."""

from megatronapp.gateway.scope.recordings.format import Header
from megatronapp.gateway.scope.recordings.recorder import Recorder
from megatronapp.gateway.scope.recordings.replay import Replay
from megatronapp.gateway.scope.recordings.store import Recordings

__all__ = ["Header", "Recorder", "Recordings", "Replay"]
