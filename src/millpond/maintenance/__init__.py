"""What runs on a stopped app: savepoint, restore, verify, rebuild, rollback, rescale."""
