"""The studies behind the pages of `docs/results`; the library imports none of them."""
