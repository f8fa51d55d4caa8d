"""A model and a data set for Kindling."""
