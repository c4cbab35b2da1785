"""`warmroute patch-deployment`: what replicas need for a shared cache, written into their YAML."""
