"""Records, arithmetic, facts and safe handling of files for every other subpackage; imports none of them."""
