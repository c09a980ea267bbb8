"""Run `aerobee` as `python -m aerobee_cli`."""

import sys

from aerobee_cli.main import main

sys.exit(main())
