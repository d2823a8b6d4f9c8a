"""`torchrun -m megatronapp.trainer --num-layers …`"""

from megatronapp.trainer.main import main

if __name__ == "__main__":
    raise SystemExit(main())
