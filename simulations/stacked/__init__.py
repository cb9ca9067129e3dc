"""Many runs trained as one: those of a sweep that differ in their seeds and in how gradients are defended."""
