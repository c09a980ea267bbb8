"""The options of a running name server: those of its start, and the changes in `runtime.json`."""

from __future__ import annotations

from aerobee_chassis import runtime_config
from aerobee_chassis.runtime_config import Replace
from aerobee_namesrv.config import NamesrvOptions
from aerobee_wire.files import replace_file


class RuntimeConfig(runtime_config.RuntimeConfig[NamesrvOptions]):
    """The current options, and the file with their changes."""

    def __init__(self, options: NamesrvOptions, replace: Replace = replace_file) -> None:
        super().__init__(options, options.runtime_path, option="configStorePath", replace=replace)
