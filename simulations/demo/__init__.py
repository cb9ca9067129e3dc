"""`flower-vfl demo`: one data set, several defenses, worker processes side by side, one comparison."""
