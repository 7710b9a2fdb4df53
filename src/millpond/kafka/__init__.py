"""What the Kafka source and the Kafka sink share."""
