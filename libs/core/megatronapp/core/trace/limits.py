"""How large anything in a trace message may be, in one place, and why.

Bounds are generous, since a job may have a million ranks: they keep what a message claims within what the platform can
hold, add up and show. Where memory is at stake it is taken in proportion to what was sent, never to what is claimed.
"""

from __future__ import annotations

MAX_WORLD = 1 << 20
"""Ranks of a job. The largest known jobs have some 10^5."""
MAX_ATTEMPT = 100_000
"""A TrainingJob restarts at most 999 times; the rest is room for suspending and for jobs outside Kubernetes."""
MAX_STEP = 10**12
"""One step a millisecond for 30 years; below 2^53, so that a page reads it exactly."""
MAX_COUNT = (1 << 63) - 1
"""Sequence numbers, bytes, tokens: what signed arithmetic takes."""
MAX_DROPPED = 10**15
"""Events that one process has lost: a million a second for 30 years. Those of 18,000 such still add up in 64 bits."""

MAX_TIME_NS = 4 * 10**18
"""Any time, either side of 0: Unix time until 2096. The sum of two such times fits 64 bits."""
MAX_DURATION_NS = 10**17
"""Of a step or an operation, or of all operations of a name in a step: three years."""

MAX_PIPELINE = 4096
"""Stages. A stage has a layer at least, and models have some hundreds."""
MAX_VIRTUAL_PIPELINE = 1024
"""Chunks of a stage, which have a layer each."""
MAX_MICROBATCHES = 1 << 16
"""Of one step and replica. Large jobs have hundreds."""
MAX_STEP_PASSES = 1 << 22
"""Microbatches x chunks x stages: what a step's graph is built of. 64 stages of 8 chunks with 2,048 microbatches have
2^20."""
MAX_SEQUENCE_LENGTH = 1 << 30
MAX_MICRO_BATCH_SIZE = 1 << 24
MAX_PARAMETERS = 10**18

MAX_COMMUNICATORS = 1 << 16
"""Of one connection, which is also the largest index: it counts from 1. A rank is a member of some tens."""
MAX_COMMUNICATOR_BYTES = 32 << 20
"""All of one rank's communicators together. The world of 100,000 ranks takes 1 MB: its ranks, and an id of their
numbers."""
MAX_FRONTIERS = 1 << 17
"""Of one heartbeat: one for each communicator, and one for each directed pair."""
MAX_OPEN_MESSAGES = 16
"""Of one directed pair. A schedule has some of them on the way; the oldest tell who waits for whom."""

MAX_SETTINGS = 2_000
"""Flags of a run, and libraries. Megatron-core has some 600 flags."""
MAX_SETTING = 4_096
"""Characters of a setting's value: a list of data files with room."""
MAX_RECIPE_BYTES = 256 << 10
"""All of a run's settings together."""
MAX_EVALUATIONS = 64
"""Between two steps."""
MAX_JOB_EVALUATIONS = 1_000
"""That are kept of a job, the newest: with the longest names they take 0.3 MB."""
MAX_KEPT_HEARTBEAT_BYTES = 64 << 10
"""Of a rank's last heartbeats in the store. One of a rank in some tens of communicators and pairs takes 2 KB."""

MAX_KEPT_NAMES = 4096
"""Of runs, with their jobs, that were found plausible; a message of another one costs a microsecond more."""
MAX_KEPT_TABLES, MAX_KEPT_TABLE = 128, 64
"""Tables of operations' names that were found plausible, and names of each: the ranks of a stage tell the same."""
MAX_KEPT_SENDERS = 1 << 17
"""Processes that were found plausible, 0.4 KiB each with names of usual length, and 1.5 KiB where the longest names are
each one's own: 50 to 190 MiB in all, of eight jobs of 16,384 ranks. A message of another one costs some microseconds
more."""
MAX_KEPT_SENDER_BYTES = 512
"""Of each. The longest names take 480; the rest is of a newer sender, or of one who fills the memory."""
MAX_NAMES = 1 << 16
"""Of one message: its rows name them by 16 bits."""
MAX_NAME = 1024
"""Characters of an operation's name: a module's full path with room."""
MAX_STACK = 16_384
"""Characters of what a rank that stands still is in."""
MAX_RECORDER = 4096
"""Characters of what its flight recorder says."""
MAX_RAS = 4096
"""Characters of what NCCL's RAS subsystem says of the job."""
MAX_LABEL = 256
"""Characters of a node, a device, a schedule, a communicator's kind. A DNS name has 253 at most."""
MAX_COMMUNICATOR_ID = 512
"""Characters of a communicator's id, beside RANK_CHARACTERS for each of its members."""
RANK_CHARACTERS = 8
"""A rank in a communicator's id: seven digits and a dash."""

MAX_ROWS = 1_000_000
"""Of any message, also of a service's answer, which holds all spans of a rank's step."""
MAX_BATCH_ROWS = 1 << 17
"""Spans of one message of a rank. A rank sends 16,384 at most; 4 MiB hold 170,000."""
MAX_SUMMARY_ROWS = 1 << 15
"""Rows of one summary, one for each (operation, chunk, communicator, peer); usually some tens. They are 130 bytes each
when decoded."""
MAX_ORDER_BYTES = 1 << 17
"""Of what a stage ran in a step: two a pass."""

MAX_PORTS = 16
"""Network ports that one rank sends through."""
MAX_TALLIES = 256
"""Kinds of NCCL's operations in a summary."""
MAX_SAMPLED = 16
"""Operations of a kind of which a summary tells by themselves."""

MAX_PHASE = 31
"""Phases are bits of 32. A newer sender may name one that is not known here."""
MAX_PHASES = 64
"""Entries of a summary's list."""

MAX_TRACE_INTERVAL = 1_000_000
"""Steps from the begin of one traced window to the next, and of the window itself."""

RESERVED_RUNS = frozenset({"manifest.json", "manifest.part"})
"""Run ids that are names of the store's own files."""
