"""A defense and an attack of one's own for flower-vfl."""
