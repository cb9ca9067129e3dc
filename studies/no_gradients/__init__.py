"""What training without gradients reaches, with pre-training and without. The study behind `no-gradients.md`."""
