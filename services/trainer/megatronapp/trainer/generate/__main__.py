"""`torchrun -m megatronapp.trainer.generate --checkpoint …`"""

from megatronapp.trainer.generate.main import main

if __name__ == "__main__":
    raise SystemExit(main())
