"""Results with their evidence in one file, which anyone can verify without the machine that measured them."""
