"""What the demonstration model is trained and measured on."""
