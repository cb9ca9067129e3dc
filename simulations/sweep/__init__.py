"""Many runs from one file: what varies, on Ray Tune, with one table and one report at the end."""
