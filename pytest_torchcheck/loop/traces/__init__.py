"""What a trace of training steps is read for, one question per module."""
