"""`torchrun -m megatronapp.trainer.generate --checkpoint …`"""

from megatronapp.trainer.generate.main import main
from megatronapp.trainer.rank_exit import RankExit

if __name__ == "__main__":
    RankExit().run(main)
