"""The home of every code: which function explains it, and which findings follow from it.

One module for each family. A check says ``codes.gradients.missing(subject, names)``; the function
behind the name is imported when it is called, so that a run in which everything passes imports none
of them.
"""
