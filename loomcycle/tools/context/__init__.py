"""Context: what a run may know of itself, its tools, its deployment and its past (tools.md 3.12).

What must not break: one module for each group of operations; none of them changes anything but
``compact``, and none shows a credential, an environment value, or anything of another tenant.
"""

from loomcycle.tools.context.request import ContextInput, Operation
from loomcycle.tools.context.tool import Context

__all__ = ["Context", "ContextInput", "Operation"]
