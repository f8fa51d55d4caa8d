"""Tables: how a file is read, what its columns are taken for, and how rows become features."""
