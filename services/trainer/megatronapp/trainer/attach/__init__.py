"""The plug-ins on a training script that is not ours, of which no line is changed. See docs/attach.md.

arguments what `megatronapp attach` takes · launch the command, with an agent beside it · light what a rank needs, as a
folder · start what Python runs first in each of its processes · late_imports patches when a module is imported ·
attachment when a rank is attached, opening to what, described what megatron-core and Megatron-LM know of it,
announcement how much of it is seen, messages what the terminal shows of that · session what the script does, told to
the plug-ins as the trainer's loop tells it · scope MegaScope, made when the model is seen, and its borders ·
megatron_core (with passes), megatron_lm and torch_loop where that is learned from.
"""
