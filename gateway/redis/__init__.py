"""How several gateways talk to Redis or Valkey."""
