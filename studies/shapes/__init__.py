"""Noise for isotropic classes on gradients whose classes are not isotropic: the study behind `shapes.md`."""
