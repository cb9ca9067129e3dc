"""Label privacy with a proof: the study behind `proof.md`."""
