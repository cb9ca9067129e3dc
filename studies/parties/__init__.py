"""Several parties: noise on their joint gradient against noise on each one's. The study behind `parties.md`."""
