import sys

from megatronapp.core.quarantine.command import main

sys.exit(main())
