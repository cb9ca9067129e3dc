"""Ten classes: what noise on cut gradients hides and what it costs, by its shape. The study behind `classes.md`."""
