"""Built-in tools, one module each, behind one interface (``base.py``).

What must not break here: a tool's failure is a result with ``is_error``, never an exception
that ends the run; a tool reaches files only through the run's volumes.
"""
