"""`weighbridge demo`: a whole inspection on one machine."""
