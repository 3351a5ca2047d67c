"""What is wrong with a cluster, its account and its files, as pure functions over data: evidence in, findings out."""
