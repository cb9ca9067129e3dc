"""What runs on a card, on a stand-in for one that every machine has."""
