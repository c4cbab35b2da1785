"""`warmroute serve --workers N`: processes that share a listener, and one that keeps them."""
