"""Sources of data: one file a data set, own files, and the catalog of all."""
