"""`torchrun -m megatronapp.trainer --num-layers …`"""

from megatronapp.trainer.main import main
from megatronapp.trainer.rank_exit import RankExit

if __name__ == "__main__":
    RankExit().run(main)
