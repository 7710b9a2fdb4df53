"""What runs on a stopped app, a module for each action; `millpond.admin` offers them."""
