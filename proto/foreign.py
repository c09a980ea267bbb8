"""Hold contracts that others own, in a descriptor pool of their own.

Other packages of the same process may have the same names in protobuf's default pool.
"""

from importlib import util

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.symbol_database import SymbolDatabase

POOL = DescriptorPool()

# Where protobuf is pure Python, its builder registers each message in the default pool too: this
# copy of the builder has another database of symbols.
_spec = util.find_spec("google.protobuf.internal.builder")
assert _spec and _spec.loader, "protobuf has a builder for generated code"
builder = util.module_from_spec(_spec)
_spec.loader.exec_module(builder)
builder._sym_db = SymbolDatabase(POOL)  # type: ignore[attr-defined]
