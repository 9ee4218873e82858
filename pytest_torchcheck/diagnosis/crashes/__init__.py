"""Exceptions of the user's code: the call that failed, what led to it, and the table of torch's messages."""
