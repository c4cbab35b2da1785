"""1,500 streams at once through one gateway, with many and with few open files (`make soak`)."""
