"""What a gateway pays for 300 replicas while nothing is asked of it (`make measure-scale`)."""
