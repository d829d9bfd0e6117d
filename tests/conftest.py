"""Settings of all tests."""

from hypothesis import settings

# A busy machine is no fault of the code: no example is timed.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
