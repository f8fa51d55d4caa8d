"""Data: files to tensors (sources), tensors to blocks (loader), both for Lightning (module)."""
