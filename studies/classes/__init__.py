"""Ten classes: protection and cost of noise on cut gradients, by its shape. The study behind `classes.md`."""
