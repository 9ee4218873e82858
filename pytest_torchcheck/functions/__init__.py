"""Custom autograd Functions and operators: found in a run, checked against central differences, explained.

- ``discovery`` records what a run applies; ``coverage`` lists what is checked and what is not.
- ``binding``, ``calls``, ``generators``, ``arguments``, ``preparation``: one call, small, in
float64, repeatable.
- ``engine.check_function`` runs the checks on that ``target``: ``derivatives`` (with ``jacobians``,
  ``projections``, ``domains``), ``reentrancy``, ``subsets``, ``upstream``, ``strides``,
  ``layouts``, ``state``,
  ``variants``, ``precision``, ``second``, ``transforms``.
- ``explanation`` turns wrong Jacobians into findings: ``relations`` (``rearranged``, ``partial``) and
  ``experiments`` say how they relate to the right ones, ``lines`` where they are computed.
- ``modules.check_module`` checks a whole module by ``slopes``; ``operators.check_operator`` a
registered operator.
"""
