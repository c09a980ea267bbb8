"""`aerobee report` and `aerobee facts` for spark-submit, which takes a file:

spark-submit job.py report --group G --out DIR
"""

from __future__ import annotations

import sys

from aerobee_spark.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
