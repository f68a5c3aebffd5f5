"""The data-path tools with the options, tables and JSON of perftest and of libibverbs' examples."""
