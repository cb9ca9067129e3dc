"""What does noise for classes that are balls hide of classes that are none? The study behind `shapes.md`."""
