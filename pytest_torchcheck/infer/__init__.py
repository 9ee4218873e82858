"""Work out what a contract would declare for a model.

Its inputs, targets and loss, as specs and as code.

:func:`.inference.infer` is the entry; :mod:`.target` reads ``package.module:name``, and imports no
torch to do so.
"""
