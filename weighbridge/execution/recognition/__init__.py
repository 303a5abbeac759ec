"""Recognises training: whether a step's update is a known optimizer's, of the gradient of a loss of the batch."""
