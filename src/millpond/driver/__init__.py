"""What runs on the driver: planning, the commit protocol, delivery, ownership."""
