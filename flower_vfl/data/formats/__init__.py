"""Files that people have: CSV, Parquet, arrays, images, archives."""
