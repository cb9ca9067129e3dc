"""What a report says of the recommended defense, and what a conditional oracle reads: census, five seeds."""
