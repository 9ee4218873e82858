"""Contracts beside their other versions: the case in this process, and the process of a reference's code."""
