"""The pure heart of Warmroute: block keys, the block map, prices, load and the routing rule."""
