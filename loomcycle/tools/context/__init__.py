"""Context: what a run may know about itself, its tools, its deployment and its past.

Specification: tools.md section 3.12. One module for each group of operations; nothing in here
may show a credential, an environment value, or anything of another tenant.
"""

from loomcycle.tools.context.request import ContextInput, Operation
from loomcycle.tools.context.tool import Context

__all__ = ["Context", "ContextInput", "Operation"]
