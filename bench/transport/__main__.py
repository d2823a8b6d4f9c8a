import sys

from bench.transport.report import main

sys.exit(main())
