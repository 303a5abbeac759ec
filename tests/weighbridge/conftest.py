"""Property tests here touch files and run beside other work, so no example has a deadline."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
