"""`python -m tuner_job.doctor`: the examination without the command line's libraries, for worker images."""

from __future__ import annotations

import sys

from tuner_job.doctor.command import main

if __name__ == "__main__":
    sys.exit(main())
