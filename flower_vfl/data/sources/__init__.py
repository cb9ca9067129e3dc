"""Where data comes from: one file a data set, own files, and the catalog of all."""
