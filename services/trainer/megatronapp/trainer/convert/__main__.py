"""`python -m megatronapp.trainer.convert`."""

import sys

from megatronapp.trainer.convert.main import main

sys.exit(main())
