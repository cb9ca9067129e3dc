"""Do the papers' claims on leakage through cut gradients hold on data within reach? The study behind `gradients.md`."""
