"""What a trained model is worth: its loss and accuracy, and how long it takes for an image."""
