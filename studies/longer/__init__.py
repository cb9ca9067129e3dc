"""Thirty epochs: persistent noise against stronger fresh noise. The study behind `longer.md`."""
