"""Example code-js agents, one folder each, as ``<agent name>/index.js``.

They need no model and no key, so they show a whole run on any machine. A program here uses
nothing but the tools in its own header and still ends well when one of them fails.
"""
