"""Ask the brokers for the content of a page, as frozen dataclasses, without HTML or HTTP."""
