"""Results of the presets' small versions on two cores: the study behind `presets.md`."""
