"""How several gateways act as one: what they tell each other, through Redis, in ticks."""
