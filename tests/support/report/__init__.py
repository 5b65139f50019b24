"""What tests of `report` share."""
