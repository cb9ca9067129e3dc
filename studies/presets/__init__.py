"""What the presets' small twins give on two cores. The script behind `presets.md`."""
