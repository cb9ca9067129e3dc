"""What unaligned rows are worth where few people are shared."""
