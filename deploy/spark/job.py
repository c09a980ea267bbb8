"""Run `aerobee report` and `aerobee facts` with spark-submit, which needs a file.

spark-submit job.py report --group G --out DIR
"""

from __future__ import annotations

import sys

from aerobee_spark.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
