from hypothesis import settings

# A loaded machine is no reason to fail.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
