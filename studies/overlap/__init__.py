"""The gain in test AUC by unaligned rows, where parties share few people."""
