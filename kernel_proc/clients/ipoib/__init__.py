"""IP over InfiniBand as a kernel client: an interface for each port, and the driver of both."""
