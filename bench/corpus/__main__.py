import sys

from bench.corpus.cli import main

if __name__ == "__main__":
    sys.exit(main())
