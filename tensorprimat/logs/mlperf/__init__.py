"""Reader of MLPerf Training result files, and of whole rounds."""
