"""A bench: a whole inspection station in one directory on one machine (`weighbridge up`, `down`, `status`)."""
