"""`python -m aerobee_cli` is `aerobee`."""

import sys

from aerobee_cli.main import main

sys.exit(main())
