"""The leaks that a report states behind the recommended defense, and a conditional oracle: census, five seeds."""
