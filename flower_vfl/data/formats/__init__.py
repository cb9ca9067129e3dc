"""File formats: CSV, Parquet, arrays, images, archives."""
